package bookspark;

import java.io.File;
import org.apache.bookkeeper.conf.ServerConfiguration;

/** The configuration of one of our bookies. Its folder is ours: nothing of BookKeeper's lies in there. */
public final class BookieConfiguration extends ServerConfiguration {
    public BookieConfiguration(ServerConfiguration other) {
        super(other);
    }

    /** The folder of the bookie that a configuration is for, whether or not it is one of ours. */
    public static String folder(ServerConfiguration conf) {
        return conf.getJournalDirNames()[0];
    }

    @Override
    public File[] getLedgerDirs() {
        throw Unavailable.insides("the folders of a bookie's ledgers");
    }

    @Override
    public File[] getJournalDirs() {
        throw Unavailable.insides("the folders of a bookie's journal");
    }
}
