import io.netty.buffer.ByteBuf;
import io.netty.buffer.PooledByteBufAllocator;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * The workloads of {@code bookspark bench ledger} on Apache BookKeeper's own client: E 3, WQ 3, AQ 2, CRC32C.
 *
 * <p>Arguments: the metadata service URI, the bookies' process ids (1,2,3), then one argument for each workload,
 * {@code "LABEL KIND key=value ..."}. Each prints one JSON line. Times are milliseconds, sizes bytes, CPU seconds.
 *
 * <p>A workload's wire is the version of the protocol: 3, the client's default, or 2. The reads of wire 2 are batched reads, of
 * whole calls.
 *
 * <p>Every entry starts with its own number, the rest is random bytes; a reader checks length and number of each entry,
 * and the BookKeeper client checks each digest.
 */
public class BenchLedger {
    static final byte[] PASSWORD = new byte[0];
    static String uri;
    static String[] bookies;
    static final Map<Integer, BookKeeper> CLIENTS = new HashMap<>();
    static BookKeeper abandoned;
    static byte[][] payloads;

    public static void main(String[] arguments) {
        int status = 1;
        try {
            uri = arguments[0];
            bookies = arguments[1].split(",");
            for (String workload : Arrays.asList(arguments).subList(2, arguments.length)) {
                String[] words = workload.split(" ");
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("label", words[0]);
                line.put("system", "bookkeeper");
                Map<String, Integer> options = new LinkedHashMap<>();
                for (String word : Arrays.asList(words).subList(2, words.length)) {
                    String[] option = word.split("=");
                    options.put(option[0], Integer.parseInt(option[1]));
                }
                line.putAll(options);
                run(words[1], options, line);
                System.out.println(json(line));
                System.out.flush();
            }
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status); // the client's threads are not waited for
    }

    static void run(String kind, Map<String, Integer> options, Map<String, Object> line) throws Exception {
        int size = options.getOrDefault("size", 1024);
        int entries = options.getOrDefault("entries", 1);
        int inFlight = options.getOrDefault("in_flight", 1);
        int ledgers = options.getOrDefault("ledgers", 1);
        int syncEvery = options.getOrDefault("sync_every", 0);
        int wire = options.getOrDefault("wire", 3);
        if (!CLIENTS.containsKey(wire)) {
            CLIENTS.put(wire, connect(wire));
        }
        BookKeeper client = CLIENTS.get(wire);
        payloads = new byte[64][size];
        Random random = new Random(size);
        for (byte[] payload : payloads) {
            random.nextBytes(payload);
        }
        switch (kind) {
            case "add":
                try (WriteHandle warm = create(client, syncEvery)) {
                    add(List.of(warm), size, options.getOrDefault("warm_up", 0), inFlight, syncEvery);
                }
                add(client, entries, size, inFlight, 1, syncEvery, line);
                break;
            case "many":
                add(client, entries, size, inFlight, ledgers, 0, line);
                break;
            case "write":
                try (WriteHandle writer = create(client, 0)) {
                    add(List.of(writer), size, entries, inFlight, 0);
                    line.put("ledger", writer.getId());
                }
                break;
            case "read":
                read(client, options.get("ledger"), size, options.get("per_call"), wire == 2, line);
                break;
            case "random":
                random(client, entries, size, inFlight, options.get("reads"), line);
                break;
            case "recover":
                recover(client, wire, ledgers, entries, size, inFlight, line);
                break;
            case "create_close":
                createClose(client, ledgers, line);
                break;
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    static BookKeeper connect(int wire) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        configuration.setUseV2WireProtocol(wire == 2);
        configuration.setThrottleValue(0); // the default limits adds to 5,000 a second
        // The default, 5 s, would fail a run in which the machine was busy for a moment.
        configuration.setAddEntryTimeout(60);
        configuration.setReadEntryTimeout(60);
        return BookKeeper.newBuilder(configuration).build();
    }

    /** If syncEvery is not 0, adds are acknowledged before they are synced. */
    static WriteHandle create(BookKeeper client, int syncEvery) throws Exception {
        EnumSet<WriteFlag> flags = syncEvery == 0 ? WriteFlag.NONE : EnumSet.of(WriteFlag.DEFERRED_SYNC);
        return client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).withWriteFlags(flags).execute().get();
    }

    static ReadHandle open(BookKeeper client, long ledger, boolean recovery) throws Exception {
        return client.newOpenLedgerOp().withLedgerId(ledger).withDigestType(DigestType.CRC32C).withPassword(PASSWORD)
                .withRecovery(recovery).execute().get();
    }

    /** Times adds to so many new ledgers in turn. */
    static void add(BookKeeper client, int entries, int size, int inFlight, int ledgers, int syncEvery,
            Map<String, Object> line) throws Exception {
        List<WriteHandle> writers = new ArrayList<>();
        for (int i = 0; i < ledgers; i++) {
            writers.add(create(client, syncEvery));
        }
        double clientCpu = cpu("self");
        double bookiesCpu = cpu(bookies);
        long start = System.nanoTime();
        long[] latencies = add(writers, size, entries, inFlight, syncEvery);
        double seconds = (System.nanoTime() - start) / 1e9;
        line.put("seconds", seconds);
        line.put("adds_per_second", entries / seconds);
        line.put("client_cpu_seconds", cpu("self") - clientCpu);
        line.put("bookies_cpu_seconds", cpu(bookies) - bookiesCpu);
        percentiles(latencies, line);
        for (WriteHandle writer : writers) {
            writer.close();
        }
    }

    /**
     * Adds entries to the ledgers in turn, at most inFlight unacknowledged; returns their latencies once all are acknowledged.
     * With syncEvery, the first ledger is synced after each so many, and at the end.
     */
    static long[] add(List<WriteHandle> writers, int size, int entries, int inFlight, int syncEvery) throws Exception {
        long[] latencies = new long[entries];
        Semaphore room = new Semaphore(inFlight);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (int i = 0; i < entries && failure.get() == null; i++) {
            int number = i;
            long expected = i / writers.size();
            ByteBuf entry = PooledByteBufAllocator.DEFAULT.directBuffer(size);
            entry.writeLong(expected).writeBytes(payloads[i % payloads.length], 8, size - 8);
            room.acquire();
            long start = System.nanoTime();
            writers.get(i % writers.size()).appendAsync(entry).whenComplete((id, error) -> {
                latencies[number] = System.nanoTime() - start;
                if (error != null || id != expected) {
                    failure.compareAndSet(null, error != null ? error : new IllegalStateException("entry id " + id));
                }
                room.release();
            });
            if (syncEvery > 0 && (i + 1) % syncEvery == 0) {
                writers.get(0).force();
            }
        }
        room.acquire(inFlight);
        if (failure.get() != null) {
            throw new Exception(failure.get());
        }
        if (syncEvery > 0) {
            writers.get(0).force().get();
        }
        return latencies;
    }

    static void read(BookKeeper client, long ledger, int size, int perCall, boolean batched, Map<String, Object> line)
            throws Exception {
        try (ReadHandle reader = open(client, ledger, false)) {
            long last = reader.getLastAddConfirmed();
            double clientCpu = cpu("self");
            double bookiesCpu = cpu(bookies);
            long start = System.nanoTime();
            for (long first = 0, next; first <= last; first = next) {
                long expected = first;
                // A batched read may bring fewer entries than it was asked for.
                try (LedgerEntries entries = batched ? reader.batchRead(first, perCall, 0)
                        : reader.read(first, Math.min(last, first + perCall - 1))) {
                    for (LedgerEntry entry : entries) {
                        ByteBuf buffer = entry.getEntryBuffer();
                        if (entry.getEntryId() != expected || buffer.readableBytes() != size
                                || buffer.getLong(buffer.readerIndex()) != expected) {
                            throw new IllegalStateException("wrong entry at " + expected);
                        }
                        expected++;
                    }
                }
                next = expected;
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            line.put("entries", last + 1);
            line.put("seconds", seconds);
            line.put("reads_per_second", (last + 1) / seconds);
            line.put("client_cpu_seconds", cpu("self") - clientCpu);
            line.put("bookies_cpu_seconds", cpu(bookies) - bookiesCpu);
        }
    }

    /** Single entries at random places of a closed ledger, one after the other; the first thousand are not timed. */
    static void random(BookKeeper client, int entries, int size, int inFlight, int reads, Map<String, Object> line)
            throws Exception {
        long ledger;
        try (WriteHandle writer = create(client, 0)) {
            add(List.of(writer), size, entries, inFlight, 0);
            ledger = writer.getId();
        }
        Random chance = new Random(reads);
        long[] latencies = new long[reads];
        try (ReadHandle reader = open(client, ledger, false)) {
            for (int i = -1000; i < reads; i++) {
                long place = chance.nextInt(entries);
                long start = System.nanoTime();
                try (LedgerEntries found = reader.read(place, place)) {
                    ByteBuf buffer = found.getEntry(place).getEntryBuffer();
                    if (buffer.readableBytes() != size || buffer.getLong(buffer.readerIndex()) != place) {
                        throw new IllegalStateException("wrong entry at " + place);
                    }
                }
                if (i >= 0) {
                    latencies[i] = System.nanoTime() - start;
                }
            }
        }
        percentiles(latencies, line);
    }

    /** Ledgers whose writer went away without closing them, all adds acknowledged: time to open with recovery. */
    static void recover(BookKeeper client, int wire, int ledgers, int entries, int size, int inFlight,
            Map<String, Object> line) throws Exception {
        // A client of its own writes them. It is never closed: BookKeeper.close() of 4.17.3 may fail with a
        // NullPointerException while the add to the slowest replica of an acknowledged entry is outstanding.
        abandoned = connect(wire);
        long[] ids = new long[ledgers];
        for (int i = 0; i < ledgers; i++) {
            WriteHandle writer = create(abandoned, 0);
            add(List.of(writer), size, entries, inFlight, 0);
            ids[i] = writer.getId();
        }
        long[] latencies = new long[ledgers];
        for (int i = 0; i < ledgers; i++) {
            long start = System.nanoTime();
            try (ReadHandle reader = open(client, ids[i], true)) {
                latencies[i] = System.nanoTime() - start;
                if (reader.getLastAddConfirmed() != entries - 1) {
                    throw new IllegalStateException("recovered to " + reader.getLastAddConfirmed());
                }
            }
        }
        percentiles(latencies, line);
    }

    static void createClose(BookKeeper client, int ledgers, Map<String, Object> line) throws Exception {
        long[] latencies = new long[ledgers];
        for (int i = 0; i < ledgers; i++) {
            long start = System.nanoTime();
            create(client, 0).close();
            latencies[i] = System.nanoTime() - start;
        }
        percentiles(latencies, line);
    }

    static void percentiles(long[] latencies, Map<String, Object> line) {
        Arrays.sort(latencies);
        line.put("p50_ms", latencies[(int) (0.5 * latencies.length)] / 1e6);
        line.put("p99_ms", latencies[(int) (0.99 * latencies.length)] / 1e6);
    }

    /** Processor seconds that these processes have used. */
    static double cpu(String... processes) throws Exception {
        long ticks = 0;
        for (String process : processes) {
            String stat = Files.readString(Path.of("/proc", process, "stat"));
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            ticks += Long.parseLong(fields[11]) + Long.parseLong(fields[12]);
        }
        return ticks / 100.0;
    }

    static String json(Map<String, Object> line) {
        StringBuilder text = new StringBuilder("{");
        line.forEach((name, value) -> text.append(text.length() > 1 ? ", " : "").append('"').append(name).append("\": ")
                .append(value instanceof String ? "\"" + value + "\"" : value.toString()));
        return text.append("}").toString();
    }
}
