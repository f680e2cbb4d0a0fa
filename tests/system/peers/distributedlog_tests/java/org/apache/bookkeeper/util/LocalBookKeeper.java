package org.apache.bookkeeper.util;

import bookspark.BookieConfiguration;
import bookspark.Bookies;
import bookspark.OurBookie;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.shims.zk.ZooKeeperServerShim;
import org.apache.bookkeeper.shims.zk.ZooKeeperServerShimFactory;
import org.apache.commons.io.FileUtils;

/**
 * Stands in the place of BookKeeper's class of this name, under the same members, so that DistributedLog's LocalDLMEmulator gets
 * Bookspark's bookies. ZooKeeper, BookKeeper's client and DistributedLog are the project's own.
 */
public final class LocalBookKeeper implements AutoCloseable {
    private static final int ZOOKEEPER_MILLISECONDS = 30_000;
    private static final int ZOOKEEPER_CONNECTIONS = 1000;

    private final String metadataServiceUri;
    private final ZooKeeperServerShim ownZooKeeper;
    private final List<OurBookie> bookies = new ArrayList<>();
    private final List<File> folders = new ArrayList<>();

    private LocalBookKeeper(String metadataServiceUri, ZooKeeperServerShim ownZooKeeper) {
        this.metadataServiceUri = metadataServiceUri;
        this.ownZooKeeper = ownZooKeeper;
    }

    /**
     * ``conf`` is a Java bookie's: how it stores and batches entries. Ours do that in their own way. They serve when this returns:
     * LocalDLMEmulator starts them behind it, waits ten seconds, and goes on without those that a machine under load has not started.
     */
    public static LocalBookKeeper getLocalBookies(
            String zkHost, int zkPort, int numBookies, boolean shouldStartZK, ServerConfiguration conf) throws Exception {
        LocalBookKeeper made = new LocalBookKeeper("zk+hierarchical://" + zkHost + ":" + zkPort + "/ledgers",
            shouldStartZK ? runZookeeper(ZOOKEEPER_CONNECTIONS, zkPort) : null);
        Bookies.ask("begin", OurBookie.zookeeper(made.metadataServiceUri));
        for (int i = 0; i < numBookies; i++) {
            made.addBookie();
        }
        return made;
    }

    public static ZooKeeperServerShim runZookeeper(int maxCC, int zookeeperPort) throws IOException {
        return runZookeeper(maxCC, zookeeperPort, IOUtils.createTempDir("zookeeper", "bookspark"));
    }

    public static ZooKeeperServerShim runZookeeper(int maxCC, int zookeeperPort, File zkDir) throws IOException {
        ZooKeeperServerShim server = ZooKeeperServerShimFactory.createServer(zkDir, zkDir, zookeeperPort, maxCC);
        server.start();
        waitForServerUp("127.0.0.1:" + zookeeperPort, ZOOKEEPER_MILLISECONDS);
        return server;
    }

    public static boolean waitForServerUp(String hostAndPort, long milliseconds) {
        long deadline = System.currentTimeMillis() + milliseconds;
        String[] words = hostAndPort.split(":");
        do {
            try (Socket socket = new Socket(words[0], Integer.parseInt(words[1]));
                    BufferedReader said = new BufferedReader(
                        new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8))) {
                socket.getOutputStream().write("stat".getBytes(StandardCharsets.UTF_8));
                socket.getOutputStream().flush();
                String line = said.readLine();
                if (line != null && line.startsWith("Zookeeper version:")) {
                    return true;
                }
            } catch (IOException e) {
                // It is not up yet.
            }
            try {
                Thread.sleep(100);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return false;
            }
        } while (System.currentTimeMillis() < deadline);
        return false;
    }

    public void start() {
        // They serve already.
    }

    public void addBookie() throws Exception {
        File folder = IOUtils.createTempDir("bookie", "bookspark");
        folders.add(folder);
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(metadataServiceUri);
        conf.setAllowLoopback(true);
        conf.setJournalDirName(folder.getPath());
        conf.setBookiePort(0);
        OurBookie bookie = new OurBookie(new BookieConfiguration(conf));
        bookie.start();
        bookies.add(bookie);
    }

    public void removeBookie() throws Exception {
        bookies.remove(bookies.size() - 1).stop();
    }

    public void shutdownBookies() throws Exception {
        for (OurBookie bookie : bookies) {
            bookie.stop();
        }
    }

    @Override
    public void close() throws Exception {
        shutdownBookies();
        if (ownZooKeeper != null) {
            ownZooKeeper.stop();
        }
        for (File folder : folders) {
            FileUtils.deleteDirectory(folder);
        }
    }
}
