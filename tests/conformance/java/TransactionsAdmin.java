// The Java admin client for transactions, which reads commands from its standard input, one per line:
//   list [STATE] | long MILLISECONDS | describe ID | producers TOPIC PARTITION | fence ID
//   | abort TOPIC PARTITION PRODUCER EPOCH COORDINATOR-EPOCH
// It replies with lines of words and then "ok", or with "error" and the name of the exception.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.common.TopicPartition;

public class TransactionsAdmin {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        try (Admin admin = Admin.create(settings)) {
            System.out.println("ok");
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                try {
                    obey(admin, line.split(" "));
                    System.out.println("ok");
                } catch (Exception error) {
                    Throwable cause = error.getCause() == null ? error : error.getCause();
                    System.out.println("error " + cause.getClass().getSimpleName());
                }
            }
        }
    }

    private static void obey(Admin admin, String[] words) throws Exception {
        switch (words[0]) {
            case "list" -> list(admin, words.length == 1 ? options() : options().filterStates(
                    Set.of(TransactionState.parse(words[1]))));
            case "long" -> list(admin, options().filterOnDuration(Long.parseLong(words[1])));
            case "describe" -> describe(admin.describeTransactions(Set.of(words[1])).description(words[1]).get());
            case "producers" -> producers(admin, new TopicPartition(words[1], Integer.parseInt(words[2])));
            case "fence" -> {
                admin.fenceProducers(Set.of(words[1])).all().get();
                System.out.println("epoch " + admin.fenceProducers(Set.of(words[1])).epochId(words[1]).get());
            }
            case "abort" -> admin.abortTransaction(new AbortTransactionSpec(
                    new TopicPartition(words[1], Integer.parseInt(words[2])),
                    Long.parseLong(words[3]), Short.parseShort(words[4]), Integer.parseInt(words[5]))).all().get();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static ListTransactionsOptions options() {
        return new ListTransactionsOptions();
    }

    private static void list(Admin admin, ListTransactionsOptions options) throws Exception {
        Collection<TransactionListing> found = admin.listTransactions(options).all().get();
        for (TransactionListing each : found) {
            System.out.println(each.transactionalId() + " " + each.state() + " " + each.producerId());
        }
    }

    private static void describe(TransactionDescription found) {
        List<String> partitions = found.topicPartitions().stream().map(TopicPartition::toString).sorted().toList();
        System.out.println(found.state() + " " + found.producerId() + " " + found.producerEpoch() + " "
                + found.transactionTimeoutMs() + " " + found.transactionStartTimeMs().isPresent() + " "
                + String.join(",", partitions));
    }

    private static void producers(Admin admin, TopicPartition partition) throws Exception {
        for (ProducerState each : admin.describeProducers(Set.of(partition)).partitionResult(partition).get()
                .activeProducers()) {
            OptionalInt epoch = each.coordinatorEpoch();
            System.out.println(each.producerId() + " " + each.producerEpoch() + " " + epoch.orElse(-1) + " "
                    + each.currentTransactionStartOffset().orElse(-1));
        }
    }
}
