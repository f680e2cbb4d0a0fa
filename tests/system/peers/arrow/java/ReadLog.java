import java.nio.file.Files;
import java.nio.file.Path;
import java.util.zip.CRC32;
import org.apache.arrow.compression.CommonsCompressionFactory;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileReader;
import org.apache.arrow.vector.ipc.ArrowReader;
import org.apache.arrow.vector.ipc.ArrowStreamReader;

/** Prints each entry of the logs that are its arguments: ledger, entry, length, CRC32 of the payload. */
public class ReadLog {
    public static void main(String[] paths) throws Exception {
        StringBuilder told = new StringBuilder();
        for (String path : paths) {
            try (RootAllocator memory = new RootAllocator();
                    var channel = Files.newByteChannel(Path.of(path));
                    ArrowReader reader = path.endsWith(".arrow")
                            ? new ArrowFileReader(channel, memory, CommonsCompressionFactory.INSTANCE)
                            : new ArrowStreamReader(channel, memory)) {
                VectorSchemaRoot root = reader.getVectorSchemaRoot();
                while (reader.loadNextBatch()) {
                    BigIntVector ledgers = (BigIntVector) root.getVector("ledger_id");
                    BigIntVector entries = (BigIntVector) root.getVector("entry_id");
                    BigIntVector lengths = (BigIntVector) root.getVector("length");
                    VarBinaryVector payloads = (VarBinaryVector) root.getVector("payload");
                    for (int row = 0; row < root.getRowCount(); row++) {
                        CRC32 sum = new CRC32();
                        sum.update(payloads.get(row));
                        told.append(ledgers.get(row)).append(' ').append(entries.get(row)).append(' ');
                        told.append(lengths.get(row)).append(' ').append(sum.getValue()).append('\n');
                    }
                }
            }
        }
        System.out.print(told);
    }
}
