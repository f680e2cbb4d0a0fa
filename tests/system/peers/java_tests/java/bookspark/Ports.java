package bookspark;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.concurrent.ThreadLocalRandom;

/** Ports for bookies, which are told theirs. PortManager asks the kernel for any, which may be a connection's end a moment later. */
public final class Ports {
    private static final int FIRST = 15_000;
    private static final int FIRST_OF_CONNECTIONS = 32_768;

    private Ports() {}

    /** A port of 127.0.0.1 that is free, and that the kernel gives to nobody who asks for any. */
    public static int free() {
        while (true) {
            int port = ThreadLocalRandom.current().nextInt(FIRST, FIRST_OF_CONNECTIONS);
            try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
                return socket.getLocalPort();
            } catch (IOException taken) {
                continue;
            }
        }
    }
}
