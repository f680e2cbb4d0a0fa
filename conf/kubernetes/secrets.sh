#!/usr/bin/env bash
# Makes the secrets of the manifests in a new folder, for its owner alone, and prints the commands that give them to Kubernetes.
#
#     bash secrets.sh FOLDER
set -euo pipefail
umask 077
mkdir -- "$1"
cd -- "$1"

random() {
    head -c 32 /dev/urandom | base64
}

# Bookies serve only clients that know this one; Spark's driver and executors only each other.
random > secret
random > spark

# ZooKeeper's only user, by SASL (DIGEST-MD5), for clients and bookies, and for its servers.
ours=$(random)
printf 'bookspark:%s\n' "$ours" > zookeeper
login='org.apache.zookeeper.server.auth.DigestLoginModule required'
cat > jaas.conf << END
Server { $login user_bookspark="$ours"; };
Client { $login username="bookspark" password="$ours"; };
END

cat << END
kubectl -n bookspark create secret generic bookspark-secret --from-file=$1/secret --from-file=$1/spark --from-file=$1/zookeeper
kubectl -n bookspark create secret generic bookspark-zookeeper --from-file=$1/jaas.conf
END
