import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.AsyncCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.tls.TLSContextFactory;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/** Does with Apache BookKeeper's own client what each line of its input says, and answers each with one line. */
public class Judge {
    static final Map<String, BookKeeper> CLIENTS = new HashMap<>();
    static final Map<String, LedgerHandle> HANDLES = new HashMap<>();
    static String uri;
    /** Folder of ca.pem, client.crt and client.key (PKCS #8); null without TLS. */
    static String tls;

    static BookKeeper client(String version) throws Exception {
        BookKeeper found = CLIENTS.get(version);
        if (found == null) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri(uri);
            conf.setUseV2WireProtocol(version.startsWith("v2"));
            conf.setAddEntryTimeout(10).setReadEntryTimeout(10).setExplictLacInterval(100);
            conf.setBatchReadEnabled(true);
            if (tls != null) {
                conf.setTLSProvider("JDK").setTLSClientAuthentication(true).setTLSProviderFactoryClass(TLSContextFactory.class.getName());
                conf.setTLSTrustStoreType("PEM").setTLSTrustStore(tls + "/ca.pem");
                conf.setTLSKeyStoreType("PEM").setTLSKeyStore(tls + "/client.key");
                conf.setTLSCertificatePath(tls + "/client.crt");
                conf.setHostnameVerificationEnabled(true);
            }
            found = new BookKeeper(conf);
            CLIENTS.put(version, found);
        }
        return found;
    }

    static byte[] payload(long entry, int size) {
        byte[] made = new byte[size];
        for (int i = 0; i < size; i++) {
            made[i] = (byte) (entry * 31 + i * 7);
        }
        return made;
    }

    static byte[] password(String word) {
        return word.equals("-") ? new byte[0] : word.getBytes(StandardCharsets.UTF_8);
    }

    static String hex(MessageDigest sha) {
        StringBuilder out = new StringBuilder();
        for (byte one : sha.digest()) {
            out.append(String.format("%02x", one));
        }
        return out.toString();
    }

    /** Count, and SHA-1 of all payloads one after the other. */
    static String told(Enumeration<LedgerEntry> entries) throws Exception {
        MessageDigest sha = MessageDigest.getInstance("SHA-1");
        int count = 0;
        while (entries.hasMoreElements()) {
            sha.update(entries.nextElement().getEntry());
            count++;
        }
        return count + " " + hex(sha);
    }

    static String told(LedgerEntries entries) throws Exception {
        MessageDigest sha = MessageDigest.getInstance("SHA-1");
        int count = 0;
        for (org.apache.bookkeeper.client.api.LedgerEntry entry : entries) {
            sha.update(entry.getEntryBytes());
            count++;
        }
        entries.close();
        return count + " " + hex(sha);
    }

    static long addPipelined(LedgerHandle handle, int count, int size) throws Exception {
        CompletableFuture<Void> all = new CompletableFuture<>();
        AtomicInteger left = new AtomicInteger(count);
        long first = handle.getLastAddPushed() + 1;
        AsyncCallback.AddCallback added = (code, ledger, entry, context) -> {
            if (code != BKException.Code.OK) {
                all.completeExceptionally(BKException.create(code));
            } else if (left.decrementAndGet() == 0) {
                all.complete(null);
            }
        };
        for (int i = 0; i < count; i++) {
            handle.asyncAddEntry(payload(first + i, size), added, null);
        }
        all.get(60, TimeUnit.SECONDS);
        return first + count - 1;
    }

    static String answer(String[] w) throws Exception {
        LedgerHandle handle = w.length > 1 ? HANDLES.get(w[1]) : null;
        switch (w[0]) {
            case "create": { // name version digest password E WQ AQ flags
                if (w[8].equals("deferred")) {
                    handle = (LedgerHandle) client(w[2]).newCreateLedgerOp()
                        .withEnsembleSize(Integer.parseInt(w[5])).withWriteQuorumSize(Integer.parseInt(w[6]))
                        .withAckQuorumSize(Integer.parseInt(w[7])).withPassword(password(w[4]))
                        .withDigestType(org.apache.bookkeeper.client.api.DigestType.valueOf(w[3]))
                        .withWriteFlags(WriteFlag.DEFERRED_SYNC).execute().get(20, TimeUnit.SECONDS);
                } else if (w[8].equals("advanced")) {
                    handle = client(w[2]).createLedgerAdv(Integer.parseInt(w[5]), Integer.parseInt(w[6]),
                        Integer.parseInt(w[7]), DigestType.valueOf(w[3]), password(w[4]));
                } else {
                    handle = client(w[2]).createLedger(Integer.parseInt(w[5]), Integer.parseInt(w[6]),
                        Integer.parseInt(w[7]), DigestType.valueOf(w[3]), password(w[4]));
                }
                HANDLES.put(w[1], handle);
                return "" + handle.getId();
            }
            case "add": { // name count size
                long last = -1;
                for (int i = 0; i < Integer.parseInt(w[2]); i++) {
                    last = handle.addEntry(payload(handle.getLastAddPushed() + 1, Integer.parseInt(w[3])));
                }
                return "" + last;
            }
            case "pipeline": // name count size
                return "" + addPipelined(handle, Integer.parseInt(w[2]), Integer.parseInt(w[3]));
            case "addas": { // name entry size, of an advanced handle
                long entry = Long.parseLong(w[2]);
                return "" + handle.addEntry(entry, payload(entry, Integer.parseInt(w[3])));
            }
            case "force":
                handle.force().get(20, TimeUnit.SECONDS);
                return "" + handle.getLastAddConfirmed();
            case "close":
                handle.close();
                return "";
            case "open": // name version digest password ledger
                HANDLES.put(w[1], client(w[2]).openLedger(Long.parseLong(w[5]), DigestType.valueOf(w[3]), password(w[4])));
                return HANDLES.get(w[1]).getLastAddConfirmed() + " " + HANDLES.get(w[1]).getLength();
            case "follow":
                HANDLES.put(w[1],
                    client(w[2]).openLedgerNoRecovery(Long.parseLong(w[5]), DigestType.valueOf(w[3]), password(w[4])));
                return "" + HANDLES.get(w[1]).getLastAddConfirmed();
            case "read": // name first last
                return told(handle.readEntries(Long.parseLong(w[2]), Long.parseLong(w[3])));
            case "readbatch": // name first count
                return told(handle.batchRead(Long.parseLong(w[2]), Integer.parseInt(w[3]), 1 << 20));
            case "unconfirmed":
                return told(handle.readUnconfirmedEntries(Long.parseLong(w[2]), Long.parseLong(w[3])));
            case "lac":
                return "" + handle.readLastConfirmed();
            case "explicitlac":
                return "" + handle.readExplicitLastConfirmed();
            case "poll": { // name entry milliseconds
                LastConfirmedAndEntry found = handle.readLastAddConfirmedAndEntryAsync(
                    Long.parseLong(w[2]), Long.parseLong(w[3]), false).get(30, TimeUnit.SECONDS);
                String told = found.getLastAddConfirmed() + " "
                    + (found.hasEntry() ? "" + found.getEntry().getEntryId() : "none");
                found.close();
                return told;
            }
            case "delete": // version ledger
                client(w[1]).deleteLedger(Long.parseLong(w[2]));
                return "";
            case "state": // name
                return handle.getLedgerMetadata().getState() + " " + handle.getLedgerMetadata().getLastEntryId();
            case "held": { // version ledger bookie count: the entries below count that the bookie says to hold
                AvailabilityOfEntriesOfLedger held = new BookKeeperAdmin(client(w[1]), new ClientConfiguration())
                    .asyncGetListOfEntriesOfLedger(BookieId.parse(w[3]), Long.parseLong(w[2])).get(20, TimeUnit.SECONDS);
                StringBuilder told = new StringBuilder();
                for (int entry = 0; entry < Integer.parseInt(w[4]); entry++) {
                    told.append(held.isEntryAvailable(entry) ? "1" : "0");
                }
                return told + " " + held.getTotalNumOfAvailableEntries();
            }
            case "bookies": // version
                return "" + client(w[1]).getBookieInfo().size();
            default:
                throw new IllegalArgumentException(w[0]);
        }
    }

    public static void main(String[] args) throws Exception {
        uri = args[0];
        tls = args.length > 1 ? args[1] : null;
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                out.println("ok " + answer(line.split(" ")));
            } catch (Throwable error) {
                Throwable cause = error;
                while (cause.getCause() != null && !(cause instanceof BKException)) {
                    cause = cause.getCause();
                }
                error.printStackTrace();
                out.println("error " + cause.getClass().getSimpleName());
            }
            out.flush();
        }
        for (BookKeeper client : CLIENTS.values()) {
            client.close();
        }
        System.exit(0);
    }
}
