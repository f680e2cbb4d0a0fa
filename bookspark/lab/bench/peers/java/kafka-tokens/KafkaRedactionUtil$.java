package org.apache.spark.kafka010;

import scala.collection.immutable.Seq;

/** What Scala makes of an object; see package-info.java. */
public class KafkaRedactionUtil$ {
    public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

    public Seq<?> redactParams(Seq<?> parameters) {
        return parameters;
    }
}
