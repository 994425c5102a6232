// Package containers tests docker-compose.yml as it is shipped: real images, a
// NATS cluster of three nodes, workers that are killed from outside.
//
// # Running
//
//	make containers
//
// builds the images (images/build.sh) and runs the tests, which hide behind the
// build tag "containers" because they need a Docker daemon and either
// docker-compose or "docker compose". TALLYMAN_COMPOSE names the command if it
// is neither. Where something is missing they fail and say how to get it.
//
// # What is left behind
//
// Nothing: each test is a compose project with a name of its own, brought down
// with its networks and volumes also when it fails. No port is opened on the
// host; everything is asked through "compose run" inside the project's network.
package containers
