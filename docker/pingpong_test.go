//go:build lab

package docker_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPingpongOfTwoHosts has two pingpongs measure between two hosts.
func TestPingpongOfTwoHosts(t *testing.T) {
	for _, series := range []string{"6.1", "6.12"} {
		t.Run(series, func(t *testing.T) {
			l := newTwoHosts(t, "RXE_KERNEL="+series)
			dir := l.programs("./cmd/pingpong")
			// The first of each: a client comes when the server listens; then it tries again.
			const both = `
				run() {
					for n in $(seq 100); do
						if "$@"; then return; fi
						sleep 0.1
					done
					exit 1
				}
				p="$1/pingpong --timeout 20s -e"
				shift
				run $p -n 50 "$@"
				run $p -n 50 --op write-imm --depth 4 --chk "$@"
				run $p --duration 1s --op read --bidirectional "$@"`
			out, errs, status := l.run("sh", "-c", both, "sh", dir, "--", "sh", "-c", both+" 2>&1", "sh", dir, "10.77.0.1")
			assert.Zero(t, status, "%s%s", out, errs)
			for _, host := range []string{"server", "client"} {
				lines := of(host, out)
				assert.Len(t, regexp.MustCompile(`(?m)^\d+ iters in `).FindAllString(lines, -1), 3, lines)
				assert.Contains(t, lines, "software device (rxe): not a measure of RDMA hardware")
			}
		})
	}
}

// TestPingpongTellsLoss has datagrams lost on both ways: both sides come to an end and
// tell the same number.
func TestPingpongTellsLoss(t *testing.T) {
	l := newTwoHosts(t)
	cmd := l.programs("./cmd/pingpong") + `/pingpong ud -e -n 300 --warmup 1 "$@" || { rdma statistic show; tc -s qdisc show; exit 1; }`
	out, errs, status := l.run("--loss", "2", "sh", "-c", cmd, "sh", "--", "sh", "-c", cmd, "sh", "10.77.0.1")
	assert.Zero(t, status, "%s%s", out, errs)
	var lost []string
	for _, host := range []string{"server", "client"} {
		m := regexp.MustCompile(`(?m)^lost: +(\d+) of 300 round trips had no answer$`).FindStringSubmatch(of(host, out))
		require.NotNil(t, m, "%s%s", out, errs)
		lost = append(lost, m[1])
	}
	assert.Equal(t, lost[0], lost[1])
	n, err := strconv.Atoi(lost[0])
	require.NoError(t, err)
	assert.Positive(t, n)
}

// TestCost has the measurements that CONTRIBUTING names work. The figures of polling are for
// people; those of events are the same on a busy machine. They are some 10,000, and were 66,000
// when the scheduler's monitor stayed awake.
func TestCost(t *testing.T) {
	cost := func(compares string, args ...string) string {
		l := newLab(t)
		l.script = "docker/cost"
		out, errs, status := l.run(append(args, "-r", "1", "-t", "rc")...)
		require.Zero(t, status, "%s%s", out, errs)
		m := regexp.MustCompile(`(?m)^rc: medians: C \d+\.\d\d usec/iter, Go \d+\.\d\d usec/iter: ` + compares + `$`).FindStringSubmatch(out)
		require.NotNil(t, m, "%s%s", out, errs)
		return m[1]
	}
	cost(`ratio (\d+\.\d{3})`, "polling", "-n", "100")
	more, err := strconv.Atoi(cost(`Go takes (-?\d+) instructions more`, "events", "-n", "1000"))
	require.NoError(t, err)
	assert.Less(t, more, 30_000)
	for _, args := range [][]string{nil, {"nothing"}, {"events", "-x"}, {"events", "-n", "1", "more"}} {
		l := newLab(t)
		l.script = "docker/cost"
		_, errs, status := l.run(args...)
		assert.Equal(t, 2, status)
		assert.Contains(t, errs, "usage: docker/cost polling|events ")
	}
}
