import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;

/** Bytes that follow from their first ones, so that each reader can check them ({@code payload} of java_programs.py). */
public class Payloads {
    /** The bytes of {@code head}, and after them its SHA-256 again and again, {@code size} bytes in all. */
    public static byte[] of(byte[] head, int size) {
        byte[] digest;
        try {
            digest = MessageDigest.getInstance("SHA-256").digest(head);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
        byte[] data = Arrays.copyOf(head, size);
        for (int start = head.length; start < size; start += digest.length) {
            System.arraycopy(digest, 0, data, start, Math.min(digest.length, size - start));
        }
        return data;
    }
}
