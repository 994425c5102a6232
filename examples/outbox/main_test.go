package main

import (
	"fmt"
	"os"
)

func Example() {
	if err := run(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// seat-1: rolled back, and nothing was asked for
	// worker: took the money for seat-2
	// seat-2: booked, and paid: 42.00
	// 1 seat, 1 payment
}
