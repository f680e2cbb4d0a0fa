// Prints each entry of the logs that are its arguments: ledger, entry, length, CRC32 of the payload.
import { readFileSync } from "node:fs";
import { CompressionType, RecordBatchReader, compressionRegistry } from "apache-arrow";
import crc32 from "crc-32";
import { decompress } from "fzstd";

compressionRegistry.set(CompressionType.ZSTD, { decode: (data) => decompress(data).slice() });
const told = [];
for (const path of process.argv.slice(2)) {
  for (const batch of RecordBatchReader.from(readFileSync(path))) {
    for (const row of batch) {
      told.push(`${row.ledger_id} ${row.entry_id} ${row.length} ${crc32.buf(row.payload) >>> 0}\n`);
    }
  }
}
process.stdout.write(told.join(""));
