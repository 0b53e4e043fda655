// A transactional producer of the Java client that reads commands from its standard input, one per line:
//   begin | send TOPIC VALUE | offsets GROUP TOPIC UPTO | commit | abort
// It replies to each with "ok", or with "error" and the name of the exception.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", arguments[1]);
        settings.put("transaction.timeout.ms", "60000");
        settings.put("linger.ms", "0");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            System.out.println("ok");
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                try {
                    obey(producer, line.split(" "));
                    System.out.println("ok");
                } catch (Exception error) {
                    Throwable cause = error.getCause() == null ? error : error.getCause();
                    System.out.println("error " + cause.getClass().getSimpleName());
                }
            }
        }
    }

    private static void obey(KafkaProducer<String, String> producer, String[] words) throws Exception {
        switch (words[0]) {
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[1], 0, null, words[2])).get();
            case "offsets" -> producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(words[2], 0), new OffsetAndMetadata(Long.parseLong(words[3]))),
                    new ConsumerGroupMetadata(words[1]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }
}
