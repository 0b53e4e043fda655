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
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A group member that records its partitions, the records it processes and its commits, in the format of
 * tests/processes/groups/history.py. It leaves in order when its standard input ends, or on SIGTERM.
 *
 * Arguments: protocol (eager, cooperative or consumer), bootstrap servers, group, topic, file, session timeout in ms.
 */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long WORK_MS = 50;
    private static final long TICK_MS = 200;
    private static final long STALL_MS = 1000;
    private static final int HEARTBEATS_A_SESSION = 6;
    private static final long NOT_KNOWN = -1;

    private final String topic;
    private final FileOutputStream history;
    private final KafkaConsumer<byte[], byte[]> consumer;
    /** The next offset to process of each owned partition. */
    private final Map<Integer, Long> next = new TreeMap<>();
    private final Map<Integer, Long> committed = new HashMap<>();
    private int commits;

    private GroupMember(String[] arguments) throws IOException {
        topic = arguments[3];
        history = new FileOutputStream(arguments[4], true);
        consumer = new KafkaConsumer<>(
            properties(arguments[0], arguments[1], arguments[2], Integer.parseInt(arguments[5])),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    public static void main(String[] arguments) throws Exception {
        GroupMember member = new GroupMember(arguments);
        Thread main = Thread.currentThread();
        boolean[] stopping = new boolean[1];
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            synchronized (stopping) {
                stopping[0] = true;
            }
            try {
                main.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        Thread clock = new Thread(member::watchTime);
        clock.setDaemon(true);
        clock.start();
        member.consumer.subscribe(List.of(member.topic), member);
        while (true) {
            synchronized (stopping) {
                if (stopping[0]) {
                    break;
                }
            }
            member.turn();
        }
        member.commit();
        member.next.clear();
        member.write("leaving", "-");
        member.consumer.close();
    }

    private void turn() throws InterruptedException {
        List<long[]> runs = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : poll()) {
            if (!next.containsKey(record.partition())) {
                continue;
            }
            next.put(record.partition(), record.offset() + 1);
            long[] last = runs.isEmpty() ? null : runs.get(runs.size() - 1);
            if (last != null && last[0] == record.partition() && last[2] + 1 == record.offset()) {
                last[2] = record.offset();
            } else {
                runs.add(new long[] {record.partition(), record.offset(), record.offset()});
            }
        }
        if (!runs.isEmpty()) {
            write("processed", runs.stream().map(run -> run[0] + ":" + run[1] + "-" + run[2]).collect(Collectors.joining("\t")));
            Thread.sleep(WORK_MS);
            commit();
        }
    }

    /** Ignores a timeout, or the loss of its membership: it continues, as an application would. */
    private Iterable<ConsumerRecord<byte[], byte[]>> poll() {
        try {
            return consumer.poll(POLL);
        } catch (KafkaException e) {
            e.printStackTrace();
            return List.of();
        }
    }

    private void commit() {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        next.forEach((partition, offset) -> {
            if (offset != NOT_KNOWN && !offset.equals(committed.get(partition))) {
                offsets.put(new TopicPartition(topic, partition), new OffsetAndMetadata(offset));
            }
        });
        if (offsets.isEmpty()) {
            return;
        }
        int number = ++commits;
        String pairs = offsets.entrySet().stream()
            .map(one -> one.getKey().partition() + ":" + one.getValue().offset()).collect(Collectors.joining("\t"));
        write("sends", number, consumer.groupMetadata().generationId(), pairs);
        try {
            consumer.commitSync(offsets);
            offsets.forEach((place, at) -> committed.put(place.partition(), at.offset()));
            write("acked", number);
        } catch (CommitFailedException | RebalanceInProgressException | FencedInstanceIdException e) {
            write("refused", number, e.getClass().getSimpleName());
        } catch (KafkaException e) {
            write("unknown", number, e.getClass().getSimpleName());
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> places) {
        if (places.isEmpty()) {
            return;
        }
        places.forEach(place -> {
            next.put(place.partition(), NOT_KNOWN);
            committed.put(place.partition(), NOT_KNOWN);
        });
        String id = consumer.groupMetadata().memberId();
        write("assigned", indexes(places), consumer.groupMetadata().generationId(), id.isEmpty() ? "-" : id);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> places) {
        commit();
        giveUp("revoked", places);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> places) {
        giveUp("lost", places);
    }

    private void giveUp(String kind, Collection<TopicPartition> places) {
        List<TopicPartition> had = places.stream().filter(place -> next.remove(place.partition()) != null).toList();
        if (!had.isEmpty()) {
            write(kind, indexes(had));
        }
    }

    private static String indexes(Collection<TopicPartition> places) {
        return places.stream().map(TopicPartition::partition).sorted().map(String::valueOf).collect(Collectors.joining(","));
    }

    /** Records when this process got no CPU time. */
    private void watchTime() {
        long before = System.nanoTime();
        while (true) {
            try {
                Thread.sleep(TICK_MS);
            } catch (InterruptedException e) {
                return;
            }
            long now = System.nanoTime();
            if (now - before > (TICK_MS + STALL_MS) * 1_000_000) {
                write("stalled", before / 1000);
            }
            before = now;
        }
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

    private static Properties properties(String protocol, String bootstrap, String group, int sessionMs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("fetch.max.wait.ms", "100");
        properties.put("max.poll.interval.ms", "30000");
        properties.put("max.poll.records", "200");
        properties.put("default.api.timeout.ms", "20000");
        properties.put("request.timeout.ms", "10000");
        if (protocol.equals("consumer")) {
            properties.put("group.protocol", "consumer");
            return properties;
        }
        properties.put("group.protocol", "classic");
        properties.put("session.timeout.ms", String.valueOf(sessionMs));
        properties.put("heartbeat.interval.ms", String.valueOf(sessionMs / HEARTBEATS_A_SESSION));
        properties.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer."
            + (protocol.equals("eager") ? "RangeAssignor" : "CooperativeStickyAssignor"));
        return properties;
    }
}
