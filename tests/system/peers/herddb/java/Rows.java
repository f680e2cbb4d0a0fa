import herddb.server.Server;
import herddb.server.ServerConfiguration;
import java.io.FileInputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLIntegrityConstraintViolationException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A HerdDB server, and numbered rows over its JDBC driver.
 *
 * <p>Arguments, one of
 * <pre>
 *   serve SETTINGS           the server, until a signal stops it
 *   insert URL COUNT BYTES   inserts rows 0 to COUNT - 1, each in a transaction of its own; "inserted N" each hundred
 *   read URL COUNT BYTES     wants each row once, with its value
 * </pre>
 *
 * <p>insert and read end with a line "ok ...", or with a Java exception and status 1. A row's value follows from its number. After
 * an error insert connects again and repeats the row. A repeated row that exists is acknowledged by that.
 */
public class Rows {
    private static final int CONNECTIONS = 8;
    private static final long PATIENCE_NANOS = 300_000_000_000L;

    private static final AtomicInteger next = new AtomicInteger();
    private static final AtomicInteger inserted = new AtomicInteger();
    private static final AtomicInteger repeated = new AtomicInteger();
    private static final AtomicInteger existed = new AtomicInteger();

    public static void main(String[] words) throws Exception {
        if (words[0].equals("serve")) {
            serve(words[1]);
            return;
        }
        int status = 1;
        try {
            int count = Integer.parseInt(words[2]);
            int size = Integer.parseInt(words[3]);
            long start = System.nanoTime();
            String verdict = words[0].equals("insert") ? insertAll(words[1], count, size) : read(words[1], count, size);
            say(String.format("ok %s in %.1f s", verdict, (System.nanoTime() - start) / 1e9));
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status);
    }

    static void serve(String path) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream input = new FileInputStream(path)) {
            settings.load(input);
        }
        Server server = new Server(new ServerConfiguration(settings));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                server.close();
            } catch (Exception error) {
                error.printStackTrace();
            }
        }));
        server.start();
        Thread.currentThread().join();
    }

    static String insertAll(String url, int count, int size) throws Exception {
        try (Connection connection = connect(url); Statement statement = connection.createStatement()) {
            statement.executeUpdate("CREATE TABLE numbers (n int primary key, v bytea)");
        }
        ExecutorService threads = Executors.newFixedThreadPool(CONNECTIONS);
        List<Future<?>> ends = new ArrayList<>();
        for (int i = 0; i < CONNECTIONS; i++) {
            ends.add(threads.submit(() -> insert(url, count, size)));
        }
        for (Future<?> end : ends) {
            end.get();
        }
        return inserted + " rows inserted, " + repeated + " attempts repeated, " + existed + " rows existed then";
    }

    static Void insert(String url, int count, int size) throws Exception {
        for (int row = next.getAndIncrement(); row < count;) {
            try (Connection connection = connect(url);
                    PreparedStatement statement = connection.prepareStatement("INSERT INTO numbers (n, v) VALUES (?, ?)")) {
                for (; row < count; row = next.getAndIncrement()) {
                    row(statement, row, size);
                    int now = inserted.incrementAndGet();
                    if (now % 100 == 0) {
                        say("inserted " + now);
                    }
                }
            } catch (Exception error) {
                // The driver throws RuntimeException too, if a connection ends while it sends.
                if (repeated.incrementAndGet() % 100 == 1) {
                    System.err.println("row " + row + ": " + error);
                }
                Thread.sleep(200);
            }
        }
        return null;
    }

    static void row(PreparedStatement statement, int row, int size) throws SQLException {
        statement.setInt(1, row);
        statement.setBytes(2, value(row, size));
        try {
            statement.executeUpdate();
        } catch (SQLIntegrityConstraintViolationException exists) {
            existed.incrementAndGet();
        }
    }

    static String read(String url, int count, int size) throws Exception {
        long until = System.nanoTime() + PATIENCE_NANOS;
        while (true) {
            try {
                return readOnce(url, count, size);
            } catch (Exception error) {
                // The server is still starting.
                if (System.nanoTime() > until) {
                    throw error;
                }
                Thread.sleep(500);
            }
        }
    }

    static String readOnce(String url, int count, int size) throws SQLException {
        BitSet rows = new BitSet(count);
        try (Connection connection = connect(url);
                Statement statement = connection.createStatement();
                ResultSet results = statement.executeQuery("SELECT n, v FROM numbers")) {
            while (results.next()) {
                int row = results.getInt(1);
                if (row < 0 || row >= count || rows.get(row)) {
                    throw new AssertionError("row " + row + " came twice, or was never inserted");
                }
                if (!Arrays.equals(results.getBytes(2), value(row, size))) {
                    throw new AssertionError("row " + row + " has another value than was inserted");
                }
                rows.set(row);
            }
        }
        if (rows.cardinality() != count) {
            throw new AssertionError("row " + rows.nextClearBit(0) + " lacks, and only " + rows.cardinality() + " are there");
        }
        return count + " rows read, each once, with its value";
    }

    static Connection connect(String url) throws SQLException {
        return DriverManager.getConnection(url, "sa", "hdb");
    }

    static byte[] value(int row, int size) {
        byte[] head = ByteBuffer.allocate(12).put("numbers:".getBytes(StandardCharsets.US_ASCII)).putInt(row).array();
        return Payloads.of(head, size);
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
