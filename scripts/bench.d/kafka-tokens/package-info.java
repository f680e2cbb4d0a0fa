/**
 * What Spark's Kafka connector asks its token provider, answered for brokers without authentication: there are no tokens.
 * It takes the place of spark-token-provider-kafka-0-10, which is not to be had everywhere; no data goes through it.
 */
package org.apache.spark.kafka010;
