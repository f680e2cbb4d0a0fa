// What Spark's Kafka connector asks its token provider, answered for brokers without authentication: there are no tokens.
// It takes the place of spark-token-provider-kafka-0-10, which is not to be had everywhere; no data goes through it.
package org.apache.spark.kafka010;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkConf;
import scala.Option;
import scala.collection.immutable.Seq;

class KafkaConfigUpdater {
    private final Map<String, Object> settings;

    KafkaConfigUpdater(String module, scala.collection.immutable.Map<String, Object> given) {
        settings = new HashMap<>(scala.jdk.javaapi.CollectionConverters.asJava(given));
    }

    public KafkaConfigUpdater set(String name, Object value) {
        settings.put(name, value);
        return this;
    }

    public KafkaConfigUpdater setIfUnset(String name, Object value) {
        settings.putIfAbsent(name, value);
        return this;
    }

    public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
        return this;
    }

    public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<?> cluster) {
        return this;
    }

    public Map<String, Object> build() {
        return settings;
    }
}

class KafkaRedactionUtil$ {
    public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

    public Seq<?> redactParams(Seq<?> parameters) {
        return parameters;
    }
}

class KafkaTokenUtil$ {
    public static final KafkaTokenUtil$ MODULE$ = new KafkaTokenUtil$();

    public Option<?> findMatchingTokenClusterConfig(SparkConf conf, String servers) {
        return Option.empty();
    }

    public boolean needTokenUpdate(Map<String, Object> settings, Option<?> cluster) {
        return false;
    }
}
