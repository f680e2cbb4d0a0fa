package org.apache.bookkeeper.test;

import bookspark.BookieConfiguration;
import bookspark.Bookies;
import bookspark.OurBookie;
import bookspark.Ports;
import bookspark.Unavailable;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.common.allocator.PoolingPolicy;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.conf.TestBKConfiguration;
import org.apache.bookkeeper.metastore.InMemoryMetaStore;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieServer;
import org.apache.bookkeeper.replication.Auditor;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationWorker;
import org.apache.bookkeeper.stats.ThreadRegistry;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZKUtil;
import org.apache.zookeeper.ZooKeeper;
import org.junit.After;
import org.junit.Assert;
import org.junit.Before;
import org.junit.Rule;
import org.junit.rules.TestName;
import org.junit.rules.Timeout;

/**
 * Stands in the place of BookKeeper's class of this name, under the same members, so that BookKeeper's tests run against Bookspark's
 * bookies. The client, ZooKeeper and autorecovery are BookKeeper's. What would hand out a part of a Java bookie throws Unavailable.
 */
public abstract class BookKeeperClusterTestCase {
    private static final int STARTED_SECONDS = 120;

    @Rule
    public final TestName runtime = new TestName();

    @Rule
    public final Timeout globalTimeout;

    protected final ZooKeeperCluster zkUtil;
    protected ZooKeeper zkc;
    protected String metadataServiceUri;
    protected final TmpDirs tmpDirs = new TmpDirs();
    protected final List<ServerTester> servers = new ArrayList<>();
    protected int numBookies;
    protected BookKeeperTestClient bkc;
    protected boolean useUUIDasBookieId = true;
    protected final ServerConfiguration baseConf = TestBKConfiguration.newServerConfiguration();
    protected final ClientConfiguration baseClientConf = TestBKConfiguration.newClientConfiguration();
    private final Queue<Throwable> thrownElsewhere = new ConcurrentLinkedQueue<>();
    private boolean autoRecovery;

    public BookKeeperClusterTestCase(int numBookies) {
        this(numBookies, 120);
    }

    public BookKeeperClusterTestCase(int numBookies, int testTimeoutSecs) {
        this(numBookies, 1, testTimeoutSecs);
    }

    public BookKeeperClusterTestCase(int numBookies, int numOfZKNodes, int testTimeoutSecs) {
        this.numBookies = numBookies;
        globalTimeout = Timeout.seconds(testTimeoutSecs);
        try {
            zkUtil = numOfZKNodes == 1 ? new ZooKeeperUtil() : new ZooKeeperClusterUtil(numOfZKNodes);
        } catch (IOException | KeeperException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    // -- the cluster

    @Before
    public void setUp() throws Exception {
        setUp("/ledgers");
    }

    protected void setUp(String ledgersRootPath) throws Exception {
        InMemoryMetaStore.reset();
        setMetastoreImplClass(baseConf);
        setMetastoreImplClass(baseClientConf);
        startZKCluster();
        metadataServiceUri = getMetadataServiceUri(ledgersRootPath);
        startBKCluster(metadataServiceUri);
    }

    @After
    public void tearDown() throws Exception {
        Assert.assertTrue("thrown on other threads: " + thrownElsewhere, thrownElsewhere.isEmpty());
        try {
            stopBKCluster();
        } finally {
            try {
                stopZKCluster();
            } finally {
                tmpDirs.cleanup();
            }
        }
    }

    @After
    public void clearMetricsThreadRegistry() throws Exception {
        ThreadRegistry.clear();
    }

    protected void captureThrowable(Runnable work) {
        try {
            work.run();
        } catch (Throwable e) {
            thrownElsewhere.add(e);
        }
    }

    protected void startZKCluster() throws Exception {
        zkUtil.startCluster();
        zkc = zkUtil.getZooKeeperClient();
    }

    protected void stopZKCluster() throws Exception {
        zkUtil.killCluster();
    }

    protected String getMetadataServiceUri(String ledgersRootPath) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath);
    }

    protected String newMetadataServiceUri(String ledgersRootPath) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath);
    }

    protected String newMetadataServiceUri(String ledgersRootPath, String type) {
        return zkUtil.getMetadataServiceUri(ledgersRootPath, type);
    }

    protected void startBKCluster(String metadataServiceUri) throws Exception {
        baseConf.setMetadataServiceUri(metadataServiceUri);
        baseClientConf.setMetadataServiceUri(metadataServiceUri);
        baseClientConf.setAllocatorPoolingPolicy(PoolingPolicy.UnpooledHeap);
        String place = OurBookie.zookeeper(metadataServiceUri);
        // BookKeeper's ZooKeeperUtil has begun a cluster of its own kind; one that both understand takes its place.
        if (zkc.exists("/ledgers/LAYOUT", false) == null) {
            ZKUtil.deleteRecursive(zkc, "/ledgers");
            Bookies.ask("begin", place);
        }
        if (numBookies > 0) {
            bkc = new BookKeeperTestClient(baseClientConf, new TestStatsProvider());
        }
        for (int i = 0; i < numBookies; i++) {
            startNewBookie();
        }
    }

    protected void stopBKCluster() throws Exception {
        if (bkc != null) {
            bkc.close();
        }
        stopServers();
    }

    protected void stopAllBookies() throws Exception {
        stopAllBookies(true);
    }

    protected void stopAllBookies(boolean shutdownClient) throws Exception {
        stopServers();
        if (shutdownClient && bkc != null) {
            bkc.close();
            bkc = null;
        }
    }

    private List<ServerConfiguration> stopServers() throws Exception {
        stopReplicationService();
        List<ServerConfiguration> confs = new ArrayList<>();
        for (ServerTester server : servers) {
            server.shutdown();
            confs.add(server.getConfiguration());
        }
        servers.clear();
        return confs;
    }

    public void setMetastoreImplClass(AbstractConfiguration conf) {
        conf.setMetastoreImplClass(InMemoryMetaStore.class.getName());
    }

    // -- configurations

    protected ServerConfiguration newServerConfiguration() throws Exception {
        File folder = tmpDirs.createNew("bookie", "test");
        boolean portNow = baseConf.isEnableLocalTransport() || !baseConf.getAllowEphemeralPorts();
        return newServerConfiguration(portNow ? Ports.free() : 0, folder, new File[] {folder});
    }

    protected ServerConfiguration newServerConfiguration(int port, File journalDir, File[] ledgerDirs) {
        ServerConfiguration conf = new ServerConfiguration(baseConf);
        conf.setBookiePort(port);
        conf.setJournalDirName(journalDir.getPath());
        String[] names = new String[ledgerDirs.length];
        for (int i = 0; i < names.length; i++) {
            names[i] = ledgerDirs[i].getPath();
        }
        conf.setLedgerDirNames(names);
        conf.setAllocatorPoolingPolicy(PoolingPolicy.UnpooledHeap);
        return new BookieConfiguration(conf);
    }

    protected ClientConfiguration newClientConfiguration() {
        return new ClientConfiguration(baseClientConf);
    }

    // -- which bookies there are

    public BookieId getBookie(int index) throws Exception {
        return servers.get(index).bookie.id;
    }

    protected BookieId addressByIndex(int index) throws Exception {
        return getBookie(index);
    }

    protected List<BookieId> bookieAddresses() throws Exception {
        List<BookieId> found = new ArrayList<>();
        for (ServerTester server : servers) {
            found.add(server.bookie.id);
        }
        return found;
    }

    protected List<File> bookieLedgerDirs() throws Exception {
        throw Unavailable.insides("the folders of the bookies' ledgers");
    }

    protected List<File> bookieJournalDirs() throws Exception {
        throw Unavailable.insides("the folders of the bookies' journals");
    }

    protected BookieServer serverByIndex(int index) throws Exception {
        return servers.get(index).getServer();
    }

    protected ServerConfiguration confByIndex(int index) throws Exception {
        return servers.get(index).getConfiguration();
    }

    public ServerConfiguration getBkConf(BookieId id) throws Exception {
        return server(id).getConfiguration();
    }

    protected int indexOfServer(BookieServer server) throws Exception {
        for (int i = 0; i < servers.size(); i++) {
            if (servers.get(i).getServer() == server) {
                return i;
            }
        }
        return -1;
    }

    protected int lastBookieIndex() {
        return servers.size() - 1;
    }

    protected int bookieCount() {
        return servers.size();
    }

    private ServerTester find(BookieId id) {
        return servers.stream().filter(server -> server.bookie.id.equals(id)).findFirst().orElse(null);
    }

    private ServerTester server(BookieId id) throws IOException {
        ServerTester found = find(id);
        if (found == null) {
            throw new IOException("there is no bookie " + id);
        }
        return found;
    }

    public boolean isCreatedFromIp(BookieId id) {
        return bkc.getBookieAddressResolver().resolve(id).getSocketAddress().toString().startsWith("/");
    }

    // -- starting

    public int startNewBookie() throws Exception {
        return startNewBookieAndReturnAddress().getPort();
    }

    public BookieSocketAddress startNewBookieAndReturnAddress() throws Exception {
        return startAndAddBookie(newServerConfiguration()).getAddress();
    }

    public BookieId startNewBookieAndReturnBookieId() throws Exception {
        return startAndAddBookie(newServerConfiguration()).bookie.id;
    }

    protected ServerTester startAndAddBookie(ServerConfiguration conf) throws Exception {
        ServerTester server = startBookie(conf);
        servers.add(server);
        return server;
    }

    protected ServerTester startAndAddBookie(ServerConfiguration conf, Bookie bookie) throws Exception {
        return startBookie(conf, bookie);
    }

    protected ServerTester startBookie(ServerConfiguration conf) throws Exception {
        ServerTester server = new ServerTester(conf);
        if (bkc == null) {
            bkc = new BookKeeperTestClient(baseClientConf, new TestStatsProvider());
        }
        Future<?> known = conf.isForceReadOnlyBookie()
            ? bkc.waitForReadOnlyBookie(server.bookie.id)
            : bkc.waitForWritableBookie(server.bookie.id);
        server.bookie.start();
        try {
            known.get(STARTED_SECONDS, TimeUnit.SECONDS);
        } catch (Exception e) {
            server.shutdown();
            throw e;
        }
        if (autoRecovery) {
            server.startAutoRecovery();
        }
        return server;
    }

    protected ServerTester startBookie(ServerConfiguration conf, Bookie bookie) throws Exception {
        throw Unavailable.insides("a server of the test's own Java bookie");
    }

    // -- what befalls them

    public ServerConfiguration killBookie(BookieId id) throws Exception {
        ServerTester server = find(id);
        return server == null ? null : killBookie(servers.indexOf(server));
    }

    public ServerConfiguration killBookie(int index) throws Exception {
        ServerTester server = servers.remove(index);
        server.shutdown();
        return server.getConfiguration();
    }

    public ServerConfiguration killBookieAndWaitForZK(int index) throws Exception {
        BookieId id = getBookie(index);
        ServerConfiguration conf = killBookie(index);
        while (zkc.exists("/ledgers/available/" + id, false) != null) {
            Thread.sleep(100);
        }
        return conf;
    }

    public void setBookieToReadOnly(BookieId id) throws Exception {
        ServerTester server = find(id);
        if (server != null) {
            server.bookie.becomeReadOnly();
        }
    }

    public CountDownLatch sleepBookie(BookieId id, int seconds) throws Exception {
        CountDownLatch asleep = new CountDownLatch(1);
        sleep(server(id), asleep, () -> TimeUnit.SECONDS.sleep(seconds));
        return asleep;
    }

    public void sleepBookie(BookieId id, CountDownLatch until) throws InterruptedException, IOException {
        CountDownLatch asleep = new CountDownLatch(1);
        sleepBookie(id, until, asleep);
        asleep.await();
    }

    public void sleepBookie(BookieId id, CountDownLatch until, CountDownLatch asleep)
            throws InterruptedException, IOException {
        sleep(server(id), asleep, until::await);
    }

    private interface Wait {
        void end() throws InterruptedException;
    }

    private void sleep(ServerTester server, CountDownLatch asleep, Wait wait) {
        new Thread(() -> {
            server.getServer().suspendProcessing();
            if (asleep != null) {
                asleep.countDown();
            }
            try {
                wait.end();
                server.getServer().resumeProcessing();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }, "sleep of " + server.bookie.id).start();
    }

    public void restartBookies() throws Exception {
        restartBookies(conf -> conf);
    }

    public void restartBookies(Function<ServerConfiguration, ServerConfiguration> changed) throws Exception {
        for (ServerConfiguration conf : stopServers()) {
            startAndAddBookie(changed.apply(conf));
        }
    }

    public void restartBookie(BookieId id) throws Exception {
        ServerConfiguration conf = killBookie(servers.indexOf(server(id)));
        startAndAddBookie(conf);
    }

    // -- BookKeeper's own autorecovery

    public void setAutoRecoveryEnabled(boolean isAutoRecoveryEnabled) {
        autoRecovery = isAutoRecoveryEnabled;
    }

    public boolean isAutoRecoveryEnabled() {
        return autoRecovery;
    }

    public void startReplicationService() throws Exception {
        for (ServerTester server : servers) {
            server.startAutoRecovery();
        }
    }

    public void stopReplicationService() throws Exception {
        for (ServerTester server : servers) {
            server.stopAutoRecovery();
        }
    }

    public Auditor getAuditor(int timeout, TimeUnit unit) throws Exception {
        long deadline = System.nanoTime() + unit.toNanos(timeout);
        while (System.nanoTime() < deadline) {
            for (ServerTester server : servers) {
                if (server.recovers()) {
                    // A process of which one part has failed is ended by its watcher, which looks that often.
                    Thread.sleep(server.getConfiguration().getDeathWatchInterval() + 1000L);
                    if (server.recovers()) {
                        return server.getAuditor();
                    }
                }
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("no auditor runs");
    }

    // -- statistics

    public void resetBookieOpLoggers() {
        throw Unavailable.insides("a bookie's statistics");
    }

    public TestStatsProvider getStatsProvider(BookieId id) {
        throw Unavailable.insides("a bookie's statistics");
    }

    public TestStatsProvider getStatsProvider(int index) throws Exception {
        throw Unavailable.insides("a bookie's statistics");
    }

    /** One bookie, and BookKeeper's autorecovery beside it. */
    public class ServerTester {
        final OurBookie bookie;
        private AutoRecoveryMain recovery;

        public ServerTester(ServerConfiguration conf) throws Exception {
            bookie = new OurBookie(conf);
        }

        public ServerTester(ServerConfiguration conf, Bookie bookie) throws Exception {
            throw Unavailable.insides("a server of the test's own Java bookie");
        }

        public void startAutoRecovery() throws Exception {
            recovery = new AutoRecoveryMain(bookie.conf);
            recovery.start();
        }

        public void stopAutoRecovery() {
            if (recovery != null) {
                recovery.shutdown();
            }
        }

        public Auditor getAuditor() {
            return recovery == null ? null : recovery.getAuditor();
        }

        public ReplicationWorker getReplicationWorker() {
            return recovery == null ? null : recovery.getReplicationWorker();
        }

        boolean recovers() {
            return getAuditor() != null && getAuditor().isRunning()
                && getReplicationWorker() != null && getReplicationWorker().isRunning();
        }

        public ServerConfiguration getConfiguration() {
            return bookie.conf;
        }

        public BookieServer getServer() {
            return bookie.server;
        }

        public TestStatsProvider getStatsProvider() {
            throw Unavailable.insides("a bookie's statistics");
        }

        public BookieSocketAddress getAddress() {
            return bookie.address;
        }

        public void shutdown() throws Exception {
            bookie.stop();
            stopAutoRecovery();
        }
    }
}
