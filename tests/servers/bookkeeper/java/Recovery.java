import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.TreeSet;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.LedgerAuditorManager;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.ReplicationWorker;

/** Does with Apache BookKeeper's autorecovery and its tools what each line of its input says, and answers each with one line. */
public class Recovery {
    static ServerConfiguration conf;
    static BookKeeper client;
    static LedgerUnderreplicationManager tasks;
    static LedgerAuditorManager auditors;
    static AuditorElector elector;
    static ReplicationWorker worker;

    static String answer(String[] w) throws Exception {
        switch (w[0]) {
            case "auditor": // name: vote, and be the auditor once it is the first
                elector = new AuditorElector(w[1], conf);
                elector.start();
                return "";
            case "resign":
                elector.shutdown();
                return "";
            case "work": // begin to repair
                worker = new ReplicationWorker(conf);
                worker.start();
                return "";
            case "rest":
                worker.shutdown();
                return "";
            case "who":
                return "" + auditors.getCurrentAuditor();
            case "holder": // ledger
                return "" + tasks.getReplicationWorkerIdRereplicatingLedger(Long.parseLong(w[1]));
            case "tasks": {
                TreeSet<String> told = new TreeSet<>();
                Iterator<UnderreplicatedLedger> all = tasks.listLedgersToRereplicate(null);
                while (all.hasNext()) {
                    UnderreplicatedLedger one = all.next();
                    told.add(one.getLedgerId() + ":" + String.join(",", one.getReplicaList()));
                }
                return String.join(" ", told);
            }
            case "mark": // ledger bookie
                tasks.markLedgerUnderreplicated(Long.parseLong(w[1]), w[2]);
                return "";
            case "enabled":
                return "" + tasks.isLedgerReplicationEnabled();
            case "enable":
                tasks.enableLedgerReplication();
                return "";
            case "disable":
                tasks.disableLedgerReplication();
                return "";
            case "delay":
                if (w.length > 1) {
                    tasks.setLostBookieRecoveryDelay(Integer.parseInt(w[1]));
                }
                return "" + tasks.getLostBookieRecoveryDelay();
            case "checked":
                return "" + tasks.getCheckAllLedgersCTime();
            case "cookie": // bookie
                return MetadataDrivers.runFunctionWithRegistrationManager(conf, rm -> {
                    try {
                        return Cookie.readFromRegistrationManager(rm, BookieId.parse(w[1])).getValue().toString()
                            .replace("\n", "|");
                    } catch (Exception error) {
                        throw new RuntimeException(error);
                    }
                });
            case "format":
                return "" + BookKeeperAdmin.format(conf, false, true);
            case "nuke": // instance id
                return "" + BookKeeperAdmin.nukeExistingCluster(conf, w[1], w[2], false);
            default:
                throw new IllegalArgumentException(w[0]);
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        conf = new ServerConfiguration();
        conf.setMetadataServiceUri(args[0]);
        conf.setAllowLoopback(true);
        conf.setOpenLedgerRereplicationGracePeriod("1000");
        conf.setRwRereplicateBackoffMs(200);
        conf.setLostBookieRecoveryDelay(0);
        client = new BookKeeper(new ClientConfiguration(conf));
        tasks = client.getLedgerManagerFactory().newLedgerUnderreplicationManager();
        auditors = client.getLedgerManagerFactory().newLedgerAuditorManager();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                out.println("ok " + answer(line.split(" ")));
            } catch (Throwable error) {
                error.printStackTrace();
                out.println("error " + error);
            }
            out.flush();
        }
        System.exit(0);
    }
}
