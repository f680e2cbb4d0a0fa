package bookspark;

import java.lang.reflect.Modifier;
import java.util.jar.JarFile;

/**
 * Prints the classes of tests in a jar, its first argument, that need a cluster: they descend from the class that the second one
 * names. The other arguments are packages, as folders.
 */
public final class ListClasses {
    public static void main(String[] arguments) throws Exception {
        ClassLoader loader = ListClasses.class.getClassLoader();
        Class<?> cluster = Class.forName(arguments[1], false, loader);
        try (JarFile jar = new JarFile(arguments[0])) {
            for (String name : (Iterable<String>) jar.stream().map(entry -> entry.getName())::iterator) {
                boolean wanted = false;
                for (int i = 2; i < arguments.length; i++) {
                    wanted |= name.startsWith(arguments[i] + "/") && name.endsWith(".class") && !name.contains("$");
                }
                if (wanted) {
                    String dotted = name.substring(0, name.length() - ".class".length()).replace('/', '.');
                    Class<?> found = Class.forName(dotted, false, loader);
                    boolean runs = found != cluster && !Modifier.isAbstract(found.getModifiers());
                    if (runs && cluster.isAssignableFrom(found)) {
                        System.out.println(dotted);
                    }
                }
            }
        }
    }
}
