import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Produces numbered messages and checks what comes back, with Pulsar's own client.
 *
 * <p>Arguments: the broker's URL, then one of
 * <pre>
 *   produce TOPIC COUNT BYTES BATCHED   sends messages 0 to COUNT - 1; "produced N" each thousand, once they are acknowledged
 *   follow TOPIC COUNT BYTES            a subscriber beside it, who acknowledges each message: "followed N" each thousand
 *   read TOPIC COUNT BYTES              a reader from the earliest message on, who wants each message once, in order
 * </pre>
 *
 * <p>Each ends with a line "ok ..." that tells counts and seconds, or with a Java exception and status 1. A message has its number
 * first, and after it bytes that follow from the number. A subscriber may see a message again that it had acknowledged while the
 * broker died: those are counted. A message that comes too early is an error, for both.
 */
public class Messages {
    public static void main(String[] words) {
        int status = 1;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).operationTimeout(120, TimeUnit.SECONDS)
                .connectionTimeout(5, TimeUnit.SECONDS).maxBackoffInterval(1, TimeUnit.SECONDS).build()) {
            String topic = words[2];
            int count = Integer.parseInt(words[3]);
            int size = Integer.parseInt(words[4]);
            long start = System.nanoTime();
            String told;
            switch (words[1]) {
                case "produce":
                    told = produce(client, topic, count, size, Boolean.parseBoolean(words[5]));
                    break;
                case "follow":
                    told = follow(client, topic, count, size);
                    break;
                case "read":
                    told = read(client, topic, count, size);
                    break;
                default:
                    throw new IllegalArgumentException(words[1]);
            }
            say(String.format("ok %s in %.1f s", told, (System.nanoTime() - start) / 1e9));
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        Runtime.getRuntime().halt(status);
    }

    static String produce(PulsarClient client, String topic, int count, int size, boolean batched) throws Exception {
        // With its name, the broker drops what the producer sends again because the acknowledgement was lost.
        Producer<byte[]> producer = client.newProducer().topic(topic).producerName("numbers").sendTimeout(0, TimeUnit.SECONDS)
                .enableBatching(batched).blockIfQueueFull(true).maxPendingMessages(1000).create();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        AtomicLong acknowledged = new AtomicLong();
        CompletableFuture<?> last = CompletableFuture.completedFuture(null);
        for (int number = 0; number < count && failure.get() == null; number++) {
            last = producer.sendAsync(payload(number, size)).whenComplete((id, error) -> {
                if (error != null) {
                    failure.compareAndSet(null, error);
                } else if (acknowledged.incrementAndGet() % 1000 == 0) {
                    say("produced " + acknowledged.get());
                }
            });
        }
        last.get();
        if (failure.get() != null) {
            throw new Exception(failure.get());
        }
        producer.close();
        return acknowledged.get() + " messages produced";
    }

    static String follow(PulsarClient client, String topic, int count, int size) throws Exception {
        long expected = 0;
        long again = 0;
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("follower")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            while (expected < count) {
                Message<byte[]> message = consumer.receive(300, TimeUnit.SECONDS);
                long number = numberOf(message, size, expected);
                if (number > expected) {
                    throw new IllegalStateException("message " + number + " came before " + expected);
                }
                consumer.acknowledgeCumulativeAsync(message);
                if (number < expected) {
                    again++;
                } else if (++expected % 1000 == 0) {
                    say("followed " + expected);
                }
            }
        }
        return expected + " messages followed, " + again + " of them came again";
    }

    static String read(PulsarClient client, String topic, int count, int size) throws Exception {
        long expected = 0;
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest)
                .receiverQueueSize(2000).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(300, TimeUnit.SECONDS);
                long number = numberOf(message, size, expected);
                if (number != expected) {
                    throw new IllegalStateException("message " + number + " instead of " + expected);
                }
                expected++;
            }
        }
        if (expected != count) {
            throw new IllegalStateException(expected + " messages instead of " + count);
        }
        return expected + " messages read, each once, in order";
    }

    static long numberOf(Message<byte[]> message, int size, long expected) {
        if (message == null) {
            throw new IllegalStateException("no message " + expected + " in 300 s");
        }
        byte[] data = message.getData();
        long number = ByteBuffer.wrap(data).getLong();
        if (data.length != size || !java.util.Arrays.equals(data, payload(number, size))) {
            throw new IllegalStateException("the message instead of " + expected + " has other bytes than were sent");
        }
        return number;
    }

    static byte[] payload(long number, int size) {
        byte[] data = new byte[size];
        ByteBuffer.wrap(data).putLong(number);
        long state = number * 0x9E3779B97F4A7C15L + 1;
        for (int i = 8; i < size; i++) {
            state ^= state << 13;
            state ^= state >>> 7;
            state ^= state << 17;
            data[i] = (byte) state;
        }
        return data;
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
