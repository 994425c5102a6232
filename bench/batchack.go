package main

import (
	"encoding/json"
	"errors"
	"fmt"
)

// checkBatch reads the answer to an atomic batch, and fails unless all of its n
// messages are stored.
func checkBatch(answer []byte, n int) error {
	var a struct {
		Count int    `json:"count"`
		Batch string `json:"batch"`
		Error *struct {
			Description string `json:"description"`
			Code        int    `json:"err_code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return fmt.Errorf("read the answer to a batch: %w", err)
	}
	switch {
	case a.Error != nil:
		return fmt.Errorf("store a batch: %s (%d)", a.Error.Description, a.Error.Code)
	case n == 1: // it went alone
		return nil
	case a.Batch == "":
		return errors.New("store a batch: the server answered to a single message")
	case a.Count != n:
		return fmt.Errorf("store a batch: %d of %d messages are stored", a.Count, n)
	}
	return nil
}
