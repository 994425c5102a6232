// Command bench compares, in one interleaved run, what JetStream itself can
// carry with what Tallyman carries, and with what its peers do on their servers.
//
// Guarantees: every contestant meets the same harness. Server, producer and
// worker are processes of their own (the program executes itself), joined by
// TCP over loopback; every scenario begins with a fresh server on an empty
// directory; contestants take turns within each round, and the order rotates
// from round to round. All counts and latencies are read from the server and
// not reported by the contestant: a scenario ends when N commands are completed
// and none is left, and it fails unless exactly the N that were submitted are
// then completed, each once. A contestant whose server is not installed is
// named in the report with what to install.
//
// Not guaranteed: absolute figures. They belong to one machine and one moment;
// compare the ratios, which are medians of the ratios within each round. Nor do
// the servers promise the same: the report says what each one's survives.
//
// Errors: the first failure ends the run with exit code 1; wrong usage is 2.
// Children end when their standard input closes, and the servers that they run
// end with them, so none outlives the run.
//
// Units: rates in commands per second, latencies in milliseconds, CPU in
// milliseconds per 10,000 commands, memory in MiB.
//
// Files: contestant.go and system.go say what a contestant and its server are;
// raw.go, tallyman.go, river.go, asynq.go and asyncjobs.go are the contestants,
// jetstream.go, cluster.go, postgres.go and redis.go the servers. mode.go lists
// what can be measured: scenario.go the straight way of all contestants,
// paths.go and pathrun.go the other paths, flat.go the cost beside ever more of
// everything, the latter two for raw and Tallyman alone (pair.go), and capacity.go what a
// command takes, with capacitymodel.go as what follows from that. rawbatch.go is
// the bound for servers that flush before they answer, books.go what is read of
// streams, traffic.go and disk.go what the kernel counts.
//
// It runs on Linux, where /proc tells what each process has used.
package main
