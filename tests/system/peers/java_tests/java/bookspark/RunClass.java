package bookspark;

import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs the class of tests that its first argument names, or only its method that the second one names. Each test is told in one line on stdout: its name, how it ended, and why. */
public final class RunClass extends RunListener {
    private final PrintStream told;
    private String outcome;
    private String why;

    private RunClass(PrintStream told) {
        this.told = told;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream told = System.out;
        System.setOut(System.err);
        JUnitCore core = new JUnitCore();
        core.addListener(new RunClass(told));
        Request tests = Request.aClass(Class.forName(arguments[0]));
        if (arguments.length > 1) {
            tests = tests.filterWith(new OneMethod(arguments[1]));
        }
        told.println("tests\t" + tests.getRunner().testCount());
        core.run(tests);
        told.println("end");
        Runtime.getRuntime().halt(0);
    }

    @Override
    public void testStarted(Description test) {
        outcome = "passed";
        why = "";
        Unavailable.takeLast();
        told.println("start\t" + test.getMethodName());
    }

    @Override
    public void testFailure(Failure failure) {
        Unavailable asked = Unavailable.takeLast();
        // What fails while a failed test is cleaned up says less than what failed first.
        if (failure.getDescription().getMethodName() == null || outcome.equals("passed")) {
            outcome = asked == null ? "failed" : asked.kind;
            why = asked == null ? oneLine(failure.getException()) : asked.getMessage();
        }
        StringWriter trace = new StringWriter();
        failure.getException().printStackTrace(new PrintWriter(trace));
        System.err.println(failure.getDescription() + "\n" + trace);
        if (failure.getDescription().getMethodName() == null) {
            told.println("class\t" + outcome + "\t" + why);
        }
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        outcome = "skipped";
        why = oneLine(failure.getException());
    }

    @Override
    public void testIgnored(Description test) {
        told.println("test\t" + test.getMethodName() + "\tskipped\t");
    }

    @Override
    public void testFinished(Description test) {
        told.println("test\t" + test.getMethodName() + "\t" + outcome + "\t" + why);
    }

    /** A method of a class, with all its parameters. */
    private static final class OneMethod extends Filter {
        private final String name;

        OneMethod(String name) {
            this.name = name;
        }

        @Override
        public boolean shouldRun(Description test) {
            return test.isSuite()
                ? test.getChildren().stream().anyMatch(this::shouldRun)
                : test.getMethodName().replaceFirst("\\[.*", "").equals(name);
        }

        @Override
        public String describe() {
            return name;
        }
    }

    private static String oneLine(Throwable thrown) {
        String words = thrown.toString().replaceAll("\\s+", " ");
        return words.length() > 200 ? words.substring(0, 200) : words;
    }
}
