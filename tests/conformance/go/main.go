// A client of the append stream that shares nothing with Ottla but wal.proto.
//
//	walclient SERVER TOPIC COUNT
//
// Creates the log, fences it, appends COUNT records with all of them in flight, closes its stream in the middle without
// having read the replies, resumes as the protocol says, and reads everything back. Prints one JSON line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	wal "ottla.dev/walclient/wal"
)

type report struct {
	Health      string `json:"health"`
	Durability  string `json:"durability"`
	Epoch       int64  `json:"epoch"`
	FenceOffset int64  `json:"fence_offset"`
	FoundLast   int64  `json:"found_last_id"`
	Resent      int    `json:"resent"`
	Settled     int    `json:"settled"`
	Entries     int    `json:"entries"`
	InOrder     bool   `json:"in_order"`
	SameOffsets bool   `json:"same_offsets"`
	Conditional string `json:"conditional"`
	Start       int64  `json:"start_after_trim"`
	End         int64  `json:"end"`
	OldWriter   string `json:"old_writer"`
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "walclient SERVER TOPIC COUNT")
		os.Exit(2)
	}
	count, err := strconv.Atoi(os.Args[3])
	if err == nil {
		err = run(os.Args[1], os.Args[2], count)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(server, topic string, count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	connection, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	var found report
	checked, err := health.NewHealthClient(connection).Check(ctx, &health.HealthCheckRequest{Service: "ottla.wal.v1.Wal"})
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	found.Health = checked.Status.String()

	any := wal.NewWalClient(connection)
	opened, err := any.Open(ctx, &wal.OpenRequest{Topic: topic, Create: &wal.Create{Partitions: 1}})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	if opened.Error != nil {
		return errors.New(opened.Error.Message)
	}
	found.Durability = opened.Durability
	leading, err := grpc.NewClient(opened.Leader, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer leading.Close()
	client := wal.NewWalClient(leading)

	fenced, err := client.Fence(ctx, &wal.FenceRequest{Topic: topic})
	if err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	found.Epoch, found.FenceOffset = fenced.Epoch, fenced.Offset
	begin := &wal.Begin{Topic: topic, Epoch: fenced.Epoch, FromOffset: fenced.Offset}

	if err := cutInTheMiddle(ctx, client, begin, count/2); err != nil {
		return fmt.Errorf("first stream: %w", err)
	}
	offsets, err := goOn(ctx, client, begin, count, &found)
	if err != nil {
		return fmt.Errorf("second stream: %w", err)
	}
	if err := readBack(ctx, client, topic, offsets, &found); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	trimmed, err := client.Trim(ctx, &wal.TrimRequest{Topic: topic, Before: offsets[10]})
	if err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	found.Start = trimmed.StartOffset
	if err := beFenced(ctx, client, begin, count, topic, &found); err != nil {
		return fmt.Errorf("old writer: %w", err)
	}
	tail, err := client.Tail(ctx, &wal.TailRequest{Topic: topic})
	if err != nil {
		return fmt.Errorf("tail: %w", err)
	}
	found.End = tail.EndOffset
	return json.NewEncoder(os.Stdout).Encode(found)
}

func data(id int) []byte { return []byte(fmt.Sprintf("record %d", id)) }

// Sends half of the records and closes the stream after the first replies.
func cutInTheMiddle(ctx context.Context, client wal.WalClient, begin *wal.Begin, half int) error {
	short, cut := context.WithCancel(ctx)
	defer cut()
	stream, err := client.Append(short)
	if err != nil {
		return err
	}
	if err := stream.Send(&wal.AppendRequest{Begin: begin}); err != nil {
		return err
	}
	for id := 0; id < half; id++ {
		if err := stream.Send(&wal.AppendRequest{FirstId: uint64(id), Data: [][]byte{data(id)}}); err != nil {
			return err
		}
	}
	for range 2 { // the reply to the start, and the first acknowledgement: some records have arrived then
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	return nil
}

// Resumes after the last id that the log has, and waits until all records are settled.
func goOn(ctx context.Context, client wal.WalClient, begin *wal.Begin, count int, found *report) (map[int]int64, error) {
	stream, err := client.Append(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&wal.AppendRequest{Begin: begin}); err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if first.Begun == nil || first.Begun.LastId == nil {
		return nil, fmt.Errorf("the log has nothing of the first stream: %v", first)
	}
	found.FoundLast = int64(*first.Begun.LastId)
	next := int(*first.Begun.LastId) + 1
	found.Resent = count - next
	go func() {
		for id := next; id < count; id += 100 {
			run := &wal.AppendRequest{FirstId: uint64(id)}
			for each := id; each < min(id+100, count); each++ {
				run.Data = append(run.Data, data(each))
			}
			if stream.Send(run) != nil {
				return
			}
		}
		// An append that expects another end than the log has.
		_ = stream.Send(&wal.AppendRequest{FirstId: uint64(count), Data: [][]byte{data(count)}, ExpectedEnd: proto.Int64(1)})
		_ = stream.CloseSend()
	}()
	offsets := map[int]int64{}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if reply.Error != nil {
			return nil, errors.New(reply.Error.Message)
		}
		for _, range_ := range reply.Acknowledged {
			for place := range int(range_.Count) {
				offsets[int(range_.FirstId)+place] = range_.FirstOffset + int64(place)
			}
		}
		for _, refused := range reply.Refused {
			found.Conditional = refused.Error.Code.String()
		}
	}
	found.Settled = len(offsets)
	return offsets, nil
}

func readBack(ctx context.Context, client wal.WalClient, topic string, offsets map[int]int64, found *report) error {
	reading, err := client.Read(ctx, &wal.ReadRequest{Topic: topic})
	if err != nil {
		return err
	}
	found.InOrder, found.SameOffsets = true, true
	for {
		reply, err := reading.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if reply.Error != nil {
			return errors.New(reply.Error.Message)
		}
		for _, entry := range reply.Entries {
			found.InOrder = found.InOrder && string(entry.Data) == string(data(found.Entries))
			found.SameOffsets = found.SameOffsets && offsets[found.Entries] == entry.Offset
			found.Entries++
		}
	}
}

// Another writer fences the log: the first one's next append fails.
func beFenced(ctx context.Context, client wal.WalClient, begin *wal.Begin, next int, topic string, found *report) error {
	stream, err := client.Append(ctx)
	if err != nil {
		return err
	}
	settled := uint64(next - 1)
	again := proto.Clone(begin).(*wal.Begin)
	again.SettledId = &settled
	if err := stream.Send(&wal.AppendRequest{Begin: again}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if _, err := client.Fence(ctx, &wal.FenceRequest{Topic: topic, ExpectedEpoch: &begin.Epoch}); err != nil {
		return err
	}
	_ = stream.Send(&wal.AppendRequest{FirstId: uint64(next), Data: [][]byte{[]byte("too late")}})
	reply, err := stream.Recv()
	if err != nil {
		return err
	}
	if reply.Error == nil {
		return fmt.Errorf("an old writer was answered: %v", reply)
	}
	found.OldWriter = reply.Error.Code.String()
	return nil
}
