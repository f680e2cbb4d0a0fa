import io.pravega.common.util.CloseableIterator;
import io.pravega.common.util.CompositeByteArraySegment;
import io.pravega.segmentstore.storage.DataLogWriterNotPrimaryException;
import io.pravega.segmentstore.storage.DurableDataLog;
import io.pravega.segmentstore.storage.DurableDataLogException;
import io.pravega.segmentstore.storage.LogAddress;
import io.pravega.segmentstore.storage.impl.bookkeeper.BookKeeperConfig;
import io.pravega.segmentstore.storage.impl.bookkeeper.BookKeeperLogFactory;
import io.pravega.segmentstore.storage.impl.bookkeeper.DebugBookKeeperLogWrapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Numbered records in one DurableDataLog of Pravega.
 *
 * <p>Arguments: ZooKeeper's host and port, the path of the ledgers there, the bytes of a record, then one of
 * <pre>
 *   write WRITER COUNT   initializes the log, reads it, appends the records that lack up to COUNT; "appended N" for a record in a
 *                        hundred, once it is acknowledged. If another writer initializes the log, it ends with "ok not primary
 *                        ...", or with "ok failed ..." if no append got that error
 *   truncate NUMBER      initializes the log, reads it, truncates it up to this record
 *   ledgers              the ids of the log's ledgers, without a change to the log
 * </pre>
 *
 * <p>A reader wants each record once, in order, with the bytes that follow from its number and writer, and no record of a writer
 * behind one of its successor. It prints "recovered FIRST LAST"; write prints "initialized" before. Each command ends with a line
 * "ok ...", or with "failed: ..." for each cause and status 1.
 */
public class Records {
    private static final Duration TIMEOUT = Duration.ofSeconds(120);
    private static final int LOG = 7;
    private static final int IN_FLIGHT = 200;

    private final DurableDataLog log;
    private final int size;
    private long first = -1;
    private long last = -1;
    private long writer = -1;

    Records(DurableDataLog log, int size) {
        this.log = log;
        this.size = size;
    }

    public static void main(String[] words) {
        int status = 1;
        ScheduledExecutorService executor = Executors.newScheduledThreadPool(4);
        try (CuratorFramework zooKeeper = CuratorFrameworkFactory.builder().connectString(words[0]).namespace("pravega/judges")
                .retryPolicy(new ExponentialBackoffRetry(500, 10)).sessionTimeoutMs(10_000).build()) {
            zooKeeper.start();
            BookKeeperConfig config = BookKeeperConfig.builder()
                    .with(BookKeeperConfig.ZK_ADDRESS, words[0])
                    .with(BookKeeperConfig.BK_LEDGER_PATH, words[1])
                    .with(BookKeeperConfig.BK_PASSWORD, "judged")
                    .with(BookKeeperConfig.BK_LEDGER_MAX_SIZE, 4 << 20)
                    .build();
            BookKeeperLogFactory factory = new BookKeeperLogFactory(config, zooKeeper, executor);
            factory.initialize();
            int size = Integer.parseInt(words[2]);
            Records records = new Records(factory.createDurableDataLog(LOG), size);
            String verdict;
            switch (words[3]) {
                case "write":
                    verdict = records.write(Long.parseLong(words[4]), Long.parseLong(words[5]));
                    break;
                case "truncate":
                    verdict = records.truncate(Long.parseLong(words[4]));
                    break;
                case "ledgers":
                    DebugBookKeeperLogWrapper wrapper = factory.createDebugLogWrapper(LOG);
                    verdict = wrapper.fetchMetadata().getLedgers().stream().map(ledger -> "" + ledger.getLedgerId())
                            .collect(Collectors.joining(" "));
                    break;
                default:
                    throw new IllegalArgumentException(words[3]);
            }
            say("ok " + verdict);
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                say("failed: " + cause);
            }
        }
        Runtime.getRuntime().halt(status);
    }

    String write(long number, long count) throws Exception {
        log.initialize(TIMEOUT);
        say("initialized");
        read(-1);
        if (number < writer) {
            throw new IllegalStateException("writer " + writer + " was here before writer " + number);
        }
        Semaphore places = new Semaphore(IN_FLIGHT);
        Queue<Throwable> failures = new ConcurrentLinkedQueue<>();
        long[] acknowledged = {last};
        try {
            for (long record = last + 1; record < count && failures.isEmpty(); record++) {
                places.acquire();
                long appended = record;
                log.append(new CompositeByteArraySegment(payload(record, number, size)), TIMEOUT)
                        .whenComplete((address, error) -> {
                            synchronized (acknowledged) {
                                if (error != null) {
                                    failures.add(error);
                                } else if (appended > acknowledged[0]) {
                                    // An acknowledgement is one for all records before it too, says DurableDataLog.
                                    acknowledged[0] = appended;
                                    if ((appended + 1) % 100 == 0) {
                                        say("appended " + appended);
                                    }
                                }
                            }
                            places.release();
                        });
            }
        } catch (Exception closed) {
            // After a failed append the log closes and refuses the next one. The failed append's own error says why.
            failures.add(closed);
            places.release();
        }
        if (!places.tryAcquire(IN_FLIGHT, 300, TimeUnit.SECONDS)) {
            throw new IllegalStateException("appends were neither acknowledged nor failed in 300 s");
        }
        for (Throwable failure : failures) {
            for (Throwable error = failure; error != null; error = error.getCause()) {
                if (error instanceof DataLogWriterNotPrimaryException) {
                    return "not primary after record " + acknowledged[0];
                }
            }
        }
        if (!failures.isEmpty()) {
            failures.peek().printStackTrace();
            return "failed with " + failures.peek().getClass().getSimpleName() + " after record " + acknowledged[0];
        }
        log.close();
        return (acknowledged[0] + 1) + " records appended";
    }

    String truncate(long number) throws Exception {
        log.initialize(TIMEOUT);
        LogAddress address = read(number);
        log.truncate(address, TIMEOUT).get();
        long before = last;
        read(-1);
        if (first > number + 1 || last != before) {
            throw new IllegalStateException("truncated up to " + number + ", but records " + first + " to " + last + " remain");
        }
        log.close();
        return "truncated up to record " + number;
    }

    /** Reads the whole log. Returns the address of the wanted record. */
    LogAddress read(long wanted) throws DurableDataLogException, IOException {
        LogAddress address = null;
        first = -1;
        last = -1;
        writer = -1;
        try (CloseableIterator<DurableDataLog.ReadItem, DurableDataLogException> items = log.getReader()) {
            for (DurableDataLog.ReadItem item = items.getNext(); item != null; item = items.getNext()) {
                byte[] data = item.getPayload().readAllBytes();
                ByteBuffer head = ByteBuffer.wrap(data);
                long number = head.getLong();
                long by = head.getLong();
                if (first < 0) {
                    first = number;
                } else if (number != last + 1 || by < writer) {
                    throw new IllegalStateException(number + " of writer " + by + " behind " + last + " of " + writer);
                }
                if (!Arrays.equals(data, payload(number, by, size))) {
                    throw new IllegalStateException("record " + number + " has other bytes than were appended");
                }
                last = number;
                writer = by;
                if (number == wanted) {
                    address = item.getAddress();
                }
            }
        }
        say("recovered " + first + " " + last);
        return address;
    }

    static byte[] payload(long number, long writer, int size) {
        byte[] head = ByteBuffer.allocate(16).putLong(number).putLong(writer).array();
        return Payloads.of(head, size);
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
