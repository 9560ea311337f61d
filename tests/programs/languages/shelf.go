// A counter, an array and a structure, watched in Go.
package main

import "os"

type box struct {
	id     int32
	weight float64
}

var total int64
var nums = [6]int32{1, 2, 3, 4, 5, 6}
var b box

//go:noinline
func ready() {}

//go:noinline
func add(n int64) {
	total += n
	nums[2]++
	b.weight += 2.5
}

func main() {
	ready()
	add(5)
	add(900)
	if total == 905 {
		os.Exit(3)
	}
}
