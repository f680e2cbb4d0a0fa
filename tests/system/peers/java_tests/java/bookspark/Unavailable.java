package bookspark;

/** What a test asked for that Bookspark's bookies can't give it. The last one of each test says why it did not pass. */
public final class Unavailable extends RuntimeException {
    private static volatile Unavailable last;

    public final String kind;

    private Unavailable(String kind, String what) {
        super(kind + ": " + what);
        this.kind = kind;
        last = this;
    }

    /** The test wants a part of a Java bookie. */
    public static Unavailable insides(String what) {
        return new Unavailable("insides", what);
    }

    /** The test wants something that Bookspark does not have. */
    public static Unavailable notOffered(String what) {
        return new Unavailable("not offered", what);
    }

    /** What was asked for since the last call; null if nothing was. */
    public static Unavailable takeLast() {
        Unavailable found = last;
        last = null;
        return found;
    }
}
