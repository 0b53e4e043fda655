import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client behind a line protocol, so that one JVM serves all tests.
 *
 * A command is one line of fields separated by tabs: first the verb, then its arguments. Bytes are in base64 with a
 * dash for null; a map is name=value pairs separated by semicolons. A reply is any number of lines of fields, then
 * "ok", or "error", Kafka's code and a message.
 */
public final class Driver {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long READ_TIMEOUT_MS = 60_000;

    private final String bootstrap;
    private final short replicas;
    private final BufferedReader in;
    private final PrintStream out;
    private final Admin admin;

    private Driver(String bootstrap, short replicas) {
        this.bootstrap = bootstrap;
        this.replicas = replicas;
        this.in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        this.out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        this.admin = Admin.create(properties());
    }

    public static void main(String[] arguments) throws IOException {
        new Driver(arguments[0], Short.parseShort(arguments[1])).serve();
    }

    private void serve() throws IOException {
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                run(line.split("\t", -1));
                out.println("ok");
            } catch (Exception e) {
                Throwable cause = e instanceof ExecutionException ? e.getCause() : e;
                String message = cause.getClass().getSimpleName() + ": " + cause.getMessage();
                out.println("error\t" + Errors.forException(cause).code() + "\t" + encode(message.getBytes()));
            }
            out.flush();
        }
        admin.close();
    }

    private void run(String[] c) throws Exception {
        switch (c[0]) {
            case "create" -> create(c[1], Integer.parseInt(c[2]), map(c[3]));
            case "delete" -> admin.deleteTopics(List.of(c[1])).all().get();
            case "partitions" ->
                admin.createPartitions(Map.of(c[1], NewPartitions.increaseTo(Integer.parseInt(c[2])))).all().get();
            case "topics" -> topics();
            case "describe" -> describe(c[1]);
            case "cluster" -> reply(admin.describeCluster().clusterId().get(), admin.describeCluster().nodes().get().size());
            case "configs" -> configs(ConfigResource.Type.valueOf(c[1]), c[2]);
            case "alter" -> alter(c[1], c[2], c[3]);
            case "delete-records" -> deleteRecords(new TopicPartition(c[1], Integer.parseInt(c[2])), Long.parseLong(c[3]));
            case "offset-for-time" -> offsetForTime(new TopicPartition(c[1], Integer.parseInt(c[2])), Long.parseLong(c[3]));
            case "offsets" -> offsets(new TopicPartition(c[1], Integer.parseInt(c[2])));
            case "log-dirs" -> logDirs(c[1]);
            case "write" -> write(c[1], c[2], map(c[3]), Integer.parseInt(c[4]), Long.parseLong(c[5]));
            case "read" -> read(new TopicPartition(c[1], Integer.parseInt(c[2])), Long.parseLong(c[3]), Integer.parseInt(c[4]));
            case "groups" -> groups();
            case "describe-group" -> describeGroup(c[1]);
            case "delete-group" -> admin.deleteConsumerGroups(List.of(c[1])).all().get();
            case "group-offsets" -> groupOffsets(c[1]);
            case "alter-offsets" -> admin.alterConsumerGroupOffsets(c[1], offsetsOf(c)).all().get();
            case "delete-offsets" -> admin.deleteConsumerGroupOffsets(c[1], offsetsOf(c).keySet()).all().get();
            case "consume" -> consume(c[1], c[2], Integer.parseInt(c[3]), c[4]);
            default -> throw new IllegalArgumentException("no such command: " + c[0]);
        }
    }

    private void create(String topic, int partitions, Map<String, String> configs) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, replicas).configs(configs))).all().get();
    }

    private void topics() throws Exception {
        Collection<String> names = admin.listTopics().names().get();
        for (TopicDescription topic : admin.describeTopics(names).allTopicNames().get().values()) {
            reply(topic.name(), topic.partitions().size());
        }
    }

    private void describe(String topic) throws Exception {
        TopicDescription found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        reply(found.topicId(), found.partitions().size(), found.partitions().get(0).leader().id());
    }

    private void configs(ConfigResource.Type type, String name) throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            reply(entry.name(), encode(bytes(entry.value())), entry.source());
        }
    }

    private void alter(String topic, String name, String value) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp.OpType type = value.equals("-") ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), type);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    private void deleteRecords(TopicPartition partition, long before) throws Exception {
        Map<TopicPartition, RecordsToDelete> request = Map.of(partition, RecordsToDelete.beforeOffset(before));
        reply(admin.deleteRecords(request).lowWatermarks().get(partition).get().lowWatermark());
    }

    private void offsetForTime(TopicPartition partition, long timestamp) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, timestamp)).get(partition);
            reply(found == null ? -1 : found.offset());
        }
    }

    private void offsets(TopicPartition partition) throws Exception {
        for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp())) {
            reply(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset());
        }
    }

    private void logDirs(String topic) throws Exception {
        List<Integer> nodes = admin.describeCluster().nodes().get().stream().map(Node::id).toList();
        admin.describeLogDirs(nodes).allDescriptions().get().forEach((node, directories) -> {
            for (LogDirDescription directory : directories.values()) {
                directory.replicaInfos().forEach((partition, replica) -> {
                    if (partition.topic().equals(topic)) {
                        reply(node, partition.partition(), replica.size(), directory.totalBytes().orElse(-1));
                    }
                });
            }
        });
    }

    private void write(String topic, String codec, Map<String, String> settings, int count, long pauseMs) throws Exception {
        Properties properties = properties();
        properties.put("compression.type", codec);
        properties.put("acks", "all");
        properties.put("max.block.ms", "30000");
        properties.put("delivery.timeout.ms", "60000");
        properties.put("request.timeout.ms", "10000");
        settings.forEach(properties::put);
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            records.add(record(topic, in.readLine().split("\t", -1)));
        }
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (ProducerRecord<byte[], byte[]> record : records) {
                sent.add(producer.send(record));
                if (pauseMs > 0) {
                    Thread.sleep(pauseMs);
                }
            }
            producer.flush();
            for (Future<RecordMetadata> one : sent) {
                reply(one.get().partition(), one.get().offset(), one.get().timestamp());
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, String[] fields) {
        Long timestamp = fields[1].equals("-") ? null : Long.valueOf(fields[1]);
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
            topic, Integer.valueOf(fields[0]), timestamp, decode(fields[2]), decode(fields[3]));
        for (int i = 4; i + 1 < fields.length; i += 2) {
            record.headers().add(new String(decode(fields[i]), StandardCharsets.UTF_8), decode(fields[i + 1]));
        }
        return record;
    }

    private void read(TopicPartition partition, long offset, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            long deadline = System.currentTimeMillis() + READ_TIMEOUT_MS;
            int seen = 0;
            while (seen < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    if (seen++ < count) {
                        replyRecord(record);
                    }
                }
            }
        }
    }

    private void groups() throws Exception {
        for (GroupListing group : admin.listGroups(ListGroupsOptions.forConsumerGroups()).all().get()) {
            reply(group.groupId(), group.groupState().get(), group.type().get());
        }
    }

    private void describeGroup(String name) throws Exception {
        ConsumerGroupDescription group = admin.describeConsumerGroups(
            List.of(name), new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true)).all().get().get(name);
        reply(group.groupState(), group.coordinator().id(), group.authorizedOperations());
        for (MemberDescription member : group.members()) {
            StringBuilder assigned = new StringBuilder();
            for (TopicPartition partition : member.assignment().topicPartitions()) {
                assigned.append(assigned.length() == 0 ? "" : ";").append(partition);
            }
            reply(member.clientId(), member.host(), assigned);
        }
    }

    private void groupOffsets(String group) throws Exception {
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach(
            (partition, found) -> reply(partition.topic(), partition.partition(), found.offset()));
    }

    /** Fields from the third on: topic, partition and offset, repeated. */
    private static Map<TopicPartition, OffsetAndMetadata> offsetsOf(String[] c) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (int i = 2; i + 2 < c.length; i += 3) {
            offsets.put(new TopicPartition(c[i], Integer.parseInt(c[i + 1])), new OffsetAndMetadata(Long.parseLong(c[i + 2])));
        }
        return offsets;
    }

    /**
     * Reads as a member of a group, describes the group meanwhile, commits, and leaves. It commits explicit offsets:
     * otherwise this client silently leaves out a partition whose leader has just moved and whose position it validates.
     */
    private void consume(String group, String topic, int count, String protocol) throws Exception {
        Properties properties = properties();
        properties.put("group.id", group);
        properties.put("group.protocol", protocol);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("fetch.max.wait.ms", "100");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + READ_TIMEOUT_MS;
            int seen = 0;
            Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
            while (seen < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    seen++;
                    reply("record", record.partition(), record.offset(), encode(record.value()));
                    read.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
            }
            consumer.commitSync(read);
            describeGroup(group);
        }
    }

    private void replyRecord(ConsumerRecord<byte[], byte[]> record) {
        List<Object> fields = new ArrayList<>();
        fields.addAll(List.of(record.offset(), record.timestamp(), encode(record.key()), encode(record.value())));
        for (Header header : record.headers()) {
            fields.add(encode(bytes(header.key())));
            fields.add(encode(header.value()));
        }
        reply(fields.toArray());
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        Properties properties = properties();
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "none");
        properties.put("fetch.max.wait.ms", "100");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("client.id", "ottla-conformance-java");
        properties.put("default.api.timeout.ms", "60000");
        properties.put("request.timeout.ms", "10000");
        return properties;
    }

    private void reply(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        out.println(line);
    }

    private static Map<String, String> map(String text) {
        Map<String, String> found = new HashMap<>();
        for (String pair : text.split(";")) {
            if (!pair.isEmpty()) {
                found.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
            }
        }
        return found;
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    private static String encode(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }

    private static byte[] decode(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }
}
