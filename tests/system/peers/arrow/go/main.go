// Prints each entry of the logs that are its arguments: ledger, entry, length, CRC32 of the payload.
package main

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

func tell(out io.Writer, batch arrow.RecordBatch) {
	ledgers, entries, lengths := batch.Column(0).(*array.Int64), batch.Column(1).(*array.Int64), batch.Column(3).(*array.Int64)
	payloads := batch.Column(4).(*array.Binary)
	for row := 0; row < int(batch.NumRows()); row++ {
		sum := crc32.ChecksumIEEE(payloads.Value(row))
		fmt.Fprintln(out, ledgers.Value(row), entries.Value(row), lengths.Value(row), sum)
	}
}

func read(out io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if strings.HasSuffix(path, ".arrow") {
		reader, err := ipc.NewFileReader(file)
		if err != nil {
			return err
		}
		defer reader.Close()
		for number := 0; number < reader.NumRecords(); number++ {
			batch, err := reader.RecordBatch(number)
			if err != nil {
				return err
			}
			tell(out, batch)
		}
		return nil
	}
	reader, err := ipc.NewReader(file)
	if err != nil {
		return err
	}
	defer reader.Release()
	for reader.Next() {
		tell(out, reader.RecordBatch())
	}
	return reader.Err()
}

func main() {
	out := bufio.NewWriter(os.Stdout)
	for _, path := range os.Args[1:] {
		if err := read(out, path); err != nil {
			fmt.Fprintln(os.Stderr, path, err)
			os.Exit(1)
		}
	}
	out.Flush()
}
