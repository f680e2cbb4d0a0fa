package bookspark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;

/** The Python process that starts and stops Bookspark's bookies for this JVM: one command a line, one answer a line (bookies.py). */
public final class Bookies {
    private static Bookies only;

    private final Writer commands;
    private final BufferedReader answers;

    private Bookies() throws IOException {
        ProcessBuilder builder = new ProcessBuilder(System.getProperty("bookspark.bookies").split(" "));
        Process process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
        commands = new OutputStreamWriter(process.getOutputStream(), StandardCharsets.UTF_8);
        answers = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    }

    /** Has a command carried out; returns the answer. What went wrong there is an IOException. */
    public static synchronized String ask(Object... words) throws IOException {
        if (only == null) {
            only = new Bookies();
        }
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(word).append(' ');
        }
        only.commands.write(line.append('\n').toString());
        only.commands.flush();
        String answer = only.answers.readLine();
        if (answer == null || !answer.startsWith("ok")) {
            throw new IOException(answer + " to " + line);
        }
        return answer.substring(2).trim();
    }
}
