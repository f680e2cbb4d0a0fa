// Judges a history by Porcupine: is there one order of moments, each between a call and its answer, that a ledger could have?
//
// Standard input has one operation in JSON on each line (tests/histories/porcupine/judge.py); standard output gets one JSON object. A
// ledger is its length and whether it is closed. What an entry holds is known from its append, as an id is given once.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Object string `json:"object"`
	Kind   string `json:"kind"`
	At     int64  `json:"at"`
	Value  string `json:"value"`
	Call   int64  `json:"call"`
	// Answered is 0 if nobody heard an answer. If somebody saw this entry or a later one, the append had its moment, at any time
	// after its call. If nobody did, all that was heard is the same without it, and it is left out.
	Answered int64 `json:"answered"`
	// appended is what the append of entry At was given.
	appended string
}

type ledger struct {
	length int64
	closed bool
}

func step(state, input, _ interface{}) (bool, interface{}) {
	now, op := state.(ledger), input.(*operation)
	switch op.Kind {
	case "append":
		return !now.closed && op.At == now.length, ledger{now.length + 1, false}
	case "read":
		return op.At < now.length && op.Value == op.appended, now
	case "absent":
		return op.At >= now.length, now
	case "confirmed":
		return op.At < now.length, now
	case "refused":
		return op.At != now.length, now
	case "closed":
		return op.At == now.length-1, ledger{now.length, true}
	}
	panic("unknown kind " + op.Kind)
}

// seen tells up to which entry somebody saw the object.
func seen(operations []porcupine.Operation) int64 {
	last := int64(-1)
	for _, one := range operations {
		op := one.Input.(*operation)
		isSight := op.Kind == "read" || op.Kind == "confirmed" || op.Kind == "closed" || (op.Kind == "append" && op.Answered != 0)
		if isSight && op.At > last {
			last = op.At
		}
	}
	return last
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		panic(err)
	}
	objects, order, count := map[string][]porcupine.Operation{}, []string{}, 0
	appended := map[string]map[int64]string{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		op := new(operation)
		if err := json.Unmarshal(lines.Bytes(), op); err != nil {
			panic(err)
		}
		if _, known := objects[op.Object]; !known {
			order, appended[op.Object] = append(order, op.Object), map[int64]string{}
		}
		if op.Kind == "append" {
			appended[op.Object][op.At] = op.Value
		}
		answered := op.Answered
		if answered == 0 {
			answered = math.MaxInt64
		}
		objects[op.Object] = append(objects[op.Object], porcupine.Operation{Input: op, Call: op.Call, Return: answered})
		count++
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
	model := porcupine.Model{
		Init: func() interface{} { return ledger{} },
		Step: step,
	}
	deadline := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	illegal, unknown := []string{}, []string{}
	for _, name := range order {
		history, last := []porcupine.Operation{}, seen(objects[name])
		for _, one := range objects[name] {
			op := one.Input.(*operation)
			op.appended = appended[name][op.At]
			if op.Kind != "append" || op.At <= last {
				history = append(history, one)
			}
		}
		switch porcupine.CheckOperationsTimeout(model, history, max(time.Until(deadline), time.Millisecond)) {
		case porcupine.Illegal:
			illegal = append(illegal, name)
		case porcupine.Unknown:
			unknown = append(unknown, name)
		}
	}
	told, err := json.Marshal(map[string]interface{}{
		"operations": count, "objects": len(order), "illegal": illegal, "unknown": unknown,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(told))
}
