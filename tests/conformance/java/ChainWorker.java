import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A worker of tests/processes/transactions: consume, transform, produce, with the offsets in the transaction. It does
 * what worker.py does with librdkafka, and exits when it cannot continue; the harness starts another one.
 *
 * Arguments: protocol (eager or consumer), bootstrap servers, group, source, target, transactional id, file, seed,
 * session timeout in ms, transaction timeout in ms.
 */
public final class ChainWorker implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final double ABORTED_SHARE = 0.2;
    private static final int CANNOT_GO_ON = 3;
    private static final int TRIES_MAX = 20;

    private final String source;
    private final String target;
    private final String name;
    private final boolean isEager;
    private final FileOutputStream history;
    private final Random chance;
    private final KafkaConsumer<String, String> consumer;
    private final KafkaProducer<String, String> producer;
    /** The group metadata at the assignment: a member that has lost it must not commit under a newer one. */
    private ConsumerGroupMetadata membership;
    private int number;

    private ChainWorker(String[] arguments) throws IOException {
        isEager = arguments[0].equals("eager");
        source = arguments[3];
        target = arguments[4];
        String file = arguments[6].substring(arguments[6].lastIndexOf('/') + 1);
        name = file.substring(0, file.lastIndexOf('.'));
        history = new FileOutputStream(arguments[6], true);
        chance = new Random(Long.parseLong(arguments[7]));
        consumer = new KafkaConsumer<>(reading(arguments), new StringDeserializer(), new StringDeserializer());
        producer = new KafkaProducer<>(writing(arguments), new StringSerializer(), new StringSerializer());
    }

    public static void main(String[] arguments) throws Exception {
        ChainWorker worker = new ChainWorker(arguments);
        try {
            worker.retried(worker.producer::initTransactions);
            worker.consumer.subscribe(List.of(worker.source), worker);
            while (true) {
                worker.turn();
            }
        } catch (KafkaException e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(CANNOT_GO_ON);
        }
    }

    private void turn() throws InterruptedException {
        List<ConsumerRecord<String, String>> batch = new ArrayList<>();
        consumer.poll(POLL).forEach(batch::add);
        if (batch.isEmpty()) {
            return;
        }
        number++;
        boolean aborts = chance.nextDouble() < ABORTED_SHARE;
        write("began", number, batch.size());
        try {
            producer.beginTransaction();
            for (ConsumerRecord<String, String> record : batch) {
                String value = record.value() + "|" + name + "." + number + "." + (aborts ? "A" : "C");
                producer.send(new ProducerRecord<>(target, record.partition(), null, value));
            }
            if (aborts) {
                producer.flush();
                abort(batch);
            } else {
                commit(batch);
            }
        } catch (KafkaException e) {
            write("failed", number, e.getClass().getSimpleName());
            abort(batch);
        }
    }

    private void commit(List<ConsumerRecord<String, String>> batch) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        batch.forEach(record -> offsets.put(
            new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1)));
        ConsumerGroupMetadata who = isEager ? membership : consumer.groupMetadata();
        producer.sendOffsetsToTransaction(offsets, who);
        write("commits", number);
        retried(producer::commitTransaction);
        write("committed", number);
    }

    /** Aborts and seeks back to where the transaction began. An exception here ends the worker. */
    private void abort(List<ConsumerRecord<String, String>> batch) {
        retried(producer::abortTransaction);
        write("aborted", number);
        Map<TopicPartition, Long> first = new HashMap<>();
        batch.forEach(record -> first.putIfAbsent(new TopicPartition(source, record.partition()), record.offset()));
        try {
            first.forEach(consumer::seek);
        } catch (IllegalStateException e) {
            throw new KafkaException(e);
        }
    }

    /** Repeats a call after a timeout. */
    private void retried(Runnable call) {
        for (int tries = 1; ; tries++) {
            try {
                call.run();
                return;
            } catch (TimeoutException e) {
                if (tries == TRIES_MAX) {
                    throw e;
                }
            }
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> places) {
        membership = consumer.groupMetadata();
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> places) {
        // No transaction is open during a poll.
    }

    private void write(Object... fields) {
        StringBuilder line = new StringBuilder().append(System.nanoTime() / 1000);
        for (Object field : fields) {
            line.append('\t').append(field);
        }
        try {
            history.write(line.append('\n').toString().getBytes(StandardCharsets.US_ASCII));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static Properties reading(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[1]);
        properties.put("group.id", arguments[2]);
        properties.put("isolation.level", "read_committed");
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("fetch.max.wait.ms", "100");
        properties.put("max.poll.interval.ms", "30000");
        properties.put("max.poll.records", "50");
        properties.put("request.timeout.ms", "10000");
        properties.put("reconnect.backoff.max.ms", "500");
        if (arguments[0].equals("consumer")) {
            properties.put("group.protocol", "consumer");
            return properties;
        }
        properties.put("group.protocol", "classic");
        properties.put("session.timeout.ms", arguments[8]);
        properties.put("heartbeat.interval.ms", String.valueOf(Integer.parseInt(arguments[8]) / 6));
        properties.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        return properties;
    }

    private static Properties writing(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[1]);
        properties.put("transactional.id", arguments[5]);
        properties.put("transaction.timeout.ms", arguments[9]);
        properties.put("max.block.ms", "20000");
        properties.put("delivery.timeout.ms", "20000");
        properties.put("request.timeout.ms", "10000");
        properties.put("reconnect.backoff.max.ms", "500");
        properties.put("linger.ms", "5");
        return properties;
    }
}
