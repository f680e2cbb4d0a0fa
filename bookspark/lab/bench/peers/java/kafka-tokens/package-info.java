/**
 * Answers what Spark's Kafka connector asks its token provider, for brokers without authentication: there are no tokens.
 * It replaces spark-token-provider-kafka-0-10, which is not available everywhere. No data goes through it.
 */
package org.apache.spark.kafka010;
