package bookspark;

import java.lang.reflect.Modifier;
import java.util.jar.JarFile;
import org.apache.bookkeeper.test.BookKeeperClusterTestCase;

/** Prints the classes of tests in a jar, its first argument, that need a cluster; the other arguments are packages, as folders. */
public final class ListClasses {
    public static void main(String[] arguments) throws Exception {
        try (JarFile jar = new JarFile(arguments[0])) {
            for (String name : (Iterable<String>) jar.stream().map(entry -> entry.getName())::iterator) {
                boolean wanted = false;
                for (int i = 1; i < arguments.length; i++) {
                    wanted |= name.startsWith(arguments[i] + "/") && name.endsWith(".class") && !name.contains("$");
                }
                if (wanted) {
                    String dotted = name.substring(0, name.length() - ".class".length()).replace('/', '.');
                    Class<?> found = Class.forName(dotted, false, ListClasses.class.getClassLoader());
                    if (BookKeeperClusterTestCase.class.isAssignableFrom(found) && !Modifier.isAbstract(found.getModifiers())) {
                        System.out.println(dotted);
                    }
                }
            }
        }
    }
}
