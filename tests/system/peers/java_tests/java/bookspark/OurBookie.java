package bookspark;

import java.io.IOException;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.proto.BookieServer;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;

/** One bookie of Bookspark's, and the BookieServer that stands for it: what that can't tell is a bookie's insides. */
public final class OurBookie {
    public final ServerConfiguration conf;
    public final BookieId id;
    public final BookieSocketAddress address;
    public final BookieServer server;
    private final String zookeeper;
    private String number = "";

    public OurBookie(ServerConfiguration conf) throws Exception {
        this.conf = conf;
        refuseWhatWeDoNotHave(conf);
        if (conf.getBookiePort() == 0) {
            conf.setBookiePort(Ports.free());
        }
        id = BookieImpl.getBookieId(conf);
        address = BookieImpl.getBookieAddress(conf);
        zookeeper = zookeeper(conf.getMetadataServiceUri());
        server = Mockito.mock(BookieServer.class, this::answer);
    }

    /** Where Bookspark's cluster is, for a metadata service of BookKeeper's. */
    public static String zookeeper(String metadataServiceUri) {
        String path = metadataServiceUri.replaceFirst("^zk(\\+hierarchical|\\+null)?://", "");
        if (path.contains("://") || !path.endsWith("/ledgers")) {
            throw Unavailable.notOffered("metadata at " + metadataServiceUri.replaceAll("\\d+\\.\\d+\\.\\d+\\.\\d+:\\d+", "…"));
        }
        return "zk://" + path.substring(0, path.length() - "/ledgers".length()).replace(";", ",");
    }

    private static void refuseWhatWeDoNotHave(ServerConfiguration conf) {
        if (!conf.getLedgerStorageClass().startsWith("org.apache.bookkeeper.bookie.")) {
            // Noted only: some tests of such a class do without.
            Unavailable.insides("the test's own storage of a Java bookie");
        }
        if (conf.getTLSProviderFactoryClass() != null) {
            throw Unavailable.notOffered("TLS");
        }
        if (conf.getBookieAuthProviderFactoryClass() != null) {
            throw Unavailable.notOffered("authentication");
        }
    }

    public void start() throws IOException {
        number = Bookies.ask("start", zookeeper, BookieConfiguration.folder(conf), "bookie_id=" + id,
            "bookkeeper_port=" + conf.getBookiePort(), "gc_wait_time_seconds=" + conf.getGcWaitTime() / 1000.0,
            "journal_write_data=" + conf.getJournalWriteData());
        if (conf.isForceReadOnlyBookie()) {
            becomeReadOnly();
        }
    }

    public void stop() throws IOException {
        if (isRunning()) {
            Bookies.ask("stop", number);
            number = "";
        }
    }

    public boolean isRunning() {
        return !number.isEmpty();
    }

    public void becomeReadOnly() throws IOException {
        Bookies.ask("readonly", zookeeper, id);
    }

    /** What the server's methods do. */
    private Object answer(InvocationOnMock call) throws Throwable {
        switch (call.getMethod().getName()) {
            case "getBookieId":
                return id;
            case "getLocalAddress":
                return address;
            case "isRunning":
            case "isBookieRunning":
                return isRunning();
            case "start":
                start();
                return null;
            case "shutdown":
                stop();
                return null;
            case "suspendProcessing":
                Bookies.ask("suspend", number);
                return null;
            case "resumeProcessing":
                Bookies.ask("resume", number);
                return null;
            case "toString":
                return "Bookspark's bookie " + id;
            default:
                throw Unavailable.insides("BookieServer." + call.getMethod().getName());
        }
    }
}
