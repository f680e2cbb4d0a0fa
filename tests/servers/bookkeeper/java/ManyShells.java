import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.Permission;
import java.util.Base64;
import java.util.Scanner;
import org.apache.bookkeeper.bookie.BookieShell;

/**
 * Runs BookKeeper's shell, its main method, for each line of its input: what the operator types, then the shell's arguments, each
 * in base64. Answers each with one line: the exit status, and what was printed, in base64.
 */
public class ManyShells {
    static class Exit extends SecurityException {
        final int status;

        Exit(int status) {
            this.status = status;
        }
    }

    /** Commands end in System.exit, which ends the command alone here. */
    static class ExitsAreTold extends SecurityManager {
        @Override
        public void checkExit(int status) {
            throw new Exit(status);
        }

        @Override
        public void checkPermission(Permission permission) {}

        @Override
        public void checkPermission(Permission permission, Object context) {}
    }

    static int run(String[] arguments) throws Exception {
        try {
            BookieShell.main(arguments);
        } catch (Exit exit) {
            return exit.status;
        }
        return 0;
    }

    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        Scanner lines = new Scanner(System.in, StandardCharsets.US_ASCII);
        System.setSecurityManager(new ExitsAreTold());
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ", -1);
            String[] arguments = new String[words.length - 1];
            for (int i = 1; i < words.length; i++) {
                arguments[i - 1] = new String(Base64.getDecoder().decode(words[i]), StandardCharsets.UTF_8);
            }
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(Base64.getDecoder().decode(words[0])));
            System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
            int status;
            try {
                status = run(arguments);
            } catch (Throwable error) {
                error.printStackTrace();
                status = 1;
            }
            answers.println("ok " + status + " " + Base64.getEncoder().encodeToString(said.toByteArray()));
            answers.flush();
        }
    }
}
