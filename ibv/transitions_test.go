package ibv

import (
	"bufio"
	"compress/gzip"
	"errors"
	"io/fs"
	"math/bits"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// specTransitions lists the transitions of the specification as Linux knows
// them, one a line: types, states, then the attributes, optional ones in
// parentheses.
const specTransitions = `
RC,UC    RESET INIT  PKeyIndex Port Access
UD       RESET INIT  PKeyIndex Port QKey
RC,UC    INIT  INIT  (PKeyIndex) (Port) (Access)
UD       INIT  INIT  (PKeyIndex) (Port) (QKey)
RC       INIT  RTR   AV PathMTU DestQPN RQPSN MaxDestRdAtomic MinRNRTimer (AltPath) (Access) (PKeyIndex) (RateLimit)
UC       INIT  RTR   AV PathMTU DestQPN RQPSN (AltPath) (Access) (PKeyIndex)
UD       INIT  RTR   (PKeyIndex) (QKey)
RC       RTR   RTS   SQPSN MaxRdAtomic RetryCount RNRRetry Timeout (CurState) (AltPath) (Access) (MinRNRTimer) (PathMigState) (RateLimit)
UC       RTR   RTS   SQPSN (CurState) (AltPath) (Access) (PathMigState)
UD       RTR   RTS   SQPSN (CurState) (QKey)
RC       RTS   RTS   (CurState) (Access) (AltPath) (PathMigState) (MinRNRTimer) (RateLimit)
UC       RTS   RTS   (CurState) (Access) (AltPath) (PathMigState)
UD       RTS   RTS   (CurState) (QKey)
RC,UC,UD RTS   SQD   (SQDrainedNotify)
RC       SQD   RTS   (CurState) (AltPath) (Access) (MinRNRTimer) (PathMigState)
UC       SQD   RTS   (CurState) (AltPath) (Access) (PathMigState)
UD       SQD   RTS   (CurState) (QKey)
RC       SQD   SQD   (Port) (AV) (Timeout) (RetryCount) (RNRRetry) (MaxRdAtomic) (MaxDestRdAtomic) (AltPath) (Access) (PKeyIndex) (MinRNRTimer) (PathMigState)
UC       SQD   SQD   (AV) (AltPath) (Access) (PKeyIndex) (PathMigState)
UD       SQD   SQD   (PKeyIndex) (QKey)
UC       SQE   RTS   (CurState) (Access)
UD       SQE   RTS   (CurState) (QKey)
RC,UC,UD RESET RESET
RC,UC,UD INIT  RESET
RC,UC,UD RTR   RESET
RC,UC,UD RTS   RESET
RC,UC,UD SQD   RESET
RC,UC,UD SQE   RESET
RC,UC,UD ERR   RESET
RC,UC,UD INIT  ERR
RC,UC,UD RTR   ERR
RC,UC,UD RTS   ERR
RC,UC,UD SQD   ERR
RC,UC,UD SQE   ERR
RC,UC,UD ERR   ERR
`

var tabledTypes = []QPType{QPTypeRC, QPTypeUC, QPTypeUD}

type typedTransition struct {
	qpType QPType
	transition
}

func attrByName(t *testing.T, name string) QPAttrMask {
	t.Helper()
	bit := slices.Index(attrNames, name)
	require.GreaterOrEqual(t, bit, 0, name)
	return 1 << bit
}

func stateByName(t *testing.T, name string) QPState {
	t.Helper()
	for s := QPStateReset; s <= QPStateErr; s++ {
		if s.String() == name {
			return s
		}
	}
	require.Fail(t, "no such state", name)
	return 0
}

func parseSpec(t *testing.T) map[typedTransition]attrRule {
	rules := map[typedTransition]attrRule{}
	for line := range strings.Lines(strings.TrimSpace(specTransitions)) {
		words := strings.Fields(line)
		var rule attrRule
		for _, word := range words[3:] {
			if name, ok := strings.CutPrefix(word, "("); ok {
				rule.optional |= attrByName(t, strings.TrimSuffix(name, ")"))
			} else {
				rule.required |= attrByName(t, word)
			}
		}
		for _, qpType := range tabledTypes {
			if slices.Contains(strings.Split(words[0], ","), qpType.String()) {
				key := typedTransition{qpType, transition{stateByName(t, words[1]), stateByName(t, words[2])}}
				require.NotContains(t, rules, key)
				rules[key] = rule
			}
		}
	}
	return rules
}

func eachBit(mask QPAttrMask) (single []QPAttrMask) {
	for mask != 0 {
		bit := QPAttrMask(1) << bits.TrailingZeros32(uint32(mask))
		single = append(single, bit)
		mask &^= bit
	}
	return single
}

// Every pair of states of every type, with every attribute missing or added.
func TestTransitions(t *testing.T) {
	rules := parseSpec(t)
	exist := 0
	for _, qpType := range tabledTypes {
		for from := QPStateReset; from <= QPStateErr; from++ {
			for to := QPStateReset; to <= QPStateErr; to++ {
				check := func(mask QPAttrMask) *transitionError {
					err := checkTransition(qpType, from, to, mask|AttrState)
					var refused *transitionError
					if err != nil {
						require.ErrorAs(t, err, &refused)
						require.NotContains(t, err.Error(), "\n")
					}
					return refused
				}
				rule, ok := rules[typedTransition{qpType, transition{from, to}}]
				if !ok {
					refused := check(attrsAll)
					require.NotNil(t, refused, "%v %v→%v", qpType, from, to)
					require.NotContains(t, refused.targets, to)
					for _, target := range refused.targets {
						require.Contains(t, rules, typedTransition{qpType, transition{from, target}})
						require.Contains(t, refused.Error(), target.String())
					}
					continue
				}
				exist++
				require.Nil(t, check(rule.required))
				require.Nil(t, check(rule.required|rule.optional))
				for _, attr := range eachBit(rule.required) {
					refused := check(rule.required &^ attr)
					require.NotNil(t, refused)
					require.Equal(t, attr, refused.missing)
					require.Zero(t, refused.forbidden)
					require.Contains(t, refused.Error(), "missing attributes "+attr.String())
				}
				for _, attr := range eachBit(rule.optional) {
					require.Nil(t, check(rule.required|attr))
				}
				for _, attr := range eachBit(^(rule.required | rule.optional | AttrState)) {
					refused := check(rule.required | attr)
					require.NotNil(t, refused, "%v %v→%v with %v", qpType, from, to, attr)
					require.Equal(t, attr, refused.forbidden)
					require.Zero(t, refused.missing)
					require.Contains(t, refused.Error(), "not allowed here "+attr.String())
				}
			}
		}
	}
	assert.Equal(t, len(rules), exist)
	for qpType, table := range attrRules {
		for tr := range table {
			assert.Contains(t, rules, typedTransition{qpType, tr})
		}
	}
}

func TestTransitionSentences(t *testing.T) {
	for _, test := range []struct {
		qpType   QPType
		from, to QPState
		mask     QPAttrMask
		want     string
	}{
		{
			QPTypeRC, QPStateInit, QPStateRTR, AttrState | AttrAV | AttrPathMTU | AttrRQPSN | AttrMaxDestRdAtomic | AttrQKey,
			"RC QP INIT→RTR: missing attributes MinRNRTimer|DestQPN; attributes not allowed here QKey",
		},
		{
			QPTypeUD, QPStateReset, QPStateRTS, AttrState | AttrSQPSN,
			"UD QP RESET→RTS: there is no such transition, from RESET it can go to RESET, INIT",
		},
		{
			QPTypeRC, QPStateSQE, QPStateRTS, AttrState,
			"RC QP SQE→RTS: there is no such transition, from SQE it can go to RESET, ERR",
		},
		{
			QPTypeUC, QPStateReset, QPStateInit, AttrPKeyIndex | AttrPort | AttrAccess,
			"UC QP in RESET without AttrState: attributes not allowed here Access|PKeyIndex|Port",
		},
		{
			QPTypeRC, QPStateRTR, QPStateRTS, AttrSQPSN,
			"RC QP in RTR without AttrState: nothing can be modified there, from RTR it can go to RESET, RTS, ERR",
		},
	} {
		assert.EqualError(t, checkTransition(test.qpType, test.from, test.to, test.mask), test.want)
	}
}

func TestTransitionWithoutState(t *testing.T) {
	assert.NoError(t, checkTransition(QPTypeRC, QPStateRTS, QPStateReset, AttrMinRNRTimer), "to does not count")
	assert.NoError(t, checkTransition(QPTypeUD, QPStateSQD, QPStateReset, AttrQKey|AttrPKeyIndex))
	assert.NoError(t, checkTransition(QPTypeUD, QPStateErr, QPStateRTS, 0))
	assert.Error(t, checkTransition(QPTypeRC, QPStateRTS, QPStateSQD, AttrSQDrainedNotify))
}

func TestTransitionLetThrough(t *testing.T) {
	for _, qpType := range []QPType{QPTypeRawPacket, QPTypeXRCSend, QPTypeXRCRecv, QPTypeDriver, 0, 77} {
		assert.NoError(t, checkTransition(qpType, QPStateReset, QPStateRTS, attrsAll), "no table for %v", qpType)
	}
	for _, from := range []QPState{QPStateUnknown, 17, -1} {
		assert.NoError(t, checkTransition(QPTypeRC, from, QPStateRTS, AttrState), "unknown state %v", from)
	}
	for _, to := range []QPState{QPStateUnknown, 17, -1} {
		var refused *transitionError
		require.True(t, errors.As(checkTransition(QPTypeRC, QPStateInit, to, AttrState), &refused))
		assert.Equal(t, []QPState{QPStateReset, QPStateInit, QPStateRTR, QPStateErr}, refused.targets)
	}
}

// manNames are the names that the manual page has for attributes.
var manNames = map[string]QPAttrMask{
	"IBV_QP_STATE": AttrState, "IBV_QP_PKEY_INDEX": AttrPKeyIndex, "IBV_QP_PORT": AttrPort, "IBV_QP_QKEY": AttrQKey,
	"IBV_QP_ACCESS_FLAGS": AttrAccess, "IBV_QP_AV": AttrAV, "IBV_QP_PATH_MTU": AttrPathMTU, "IBV_QP_DEST_QPN": AttrDestQPN,
	"IBV_QP_RQ_PSN": AttrRQPSN, "IBV_QP_SQ_PSN": AttrSQPSN, "IBV_QP_MAX_DEST_RD_ATOMIC": AttrMaxDestRdAtomic,
	"IBV_QP_MIN_RNR_TIMER": AttrMinRNRTimer, "IBV_QP_MAX_QP_RD_ATOMIC": AttrMaxRdAtomic, "IBV_QP_RETRY_CNT": AttrRetryCount,
	"IBV_QP_RNR_RETRY": AttrRNRRetry, "IBV_QP_TIMEOUT": AttrTimeout,
}

// The way from RESET to RTS needs what the installed manual page says.
func TestTransitionsAgainstManual(t *testing.T) {
	const page = "/usr/share/man/man3/ibv_modify_qp.3.gz"
	file, err := os.Open(page)
	if errors.Is(err, fs.ErrNotExist) {
		t.Logf("%s is not installed; TestTransitions has the same table by hand", page)
		return
	}
	require.NoError(t, err)
	defer file.Close()
	text, err := gzip.NewReader(file)
	require.NoError(t, err)

	previous := map[QPState]QPState{QPStateInit: QPStateReset, QPStateRTR: QPStateInit, QPStateRTS: QPStateRTR}
	fromManual := map[typedTransition]QPAttrMask{}
	var row *typedTransition
	var qpType QPType
	for lines := bufio.NewScanner(text); lines.Scan(); {
		line := strings.NewReplacer(`\fB`, "", `\fR`, "", ",", " ", ":", " ").Replace(lines.Text())
		words := strings.Fields(line)
		if strings.HasPrefix(line, "For QP Transport Service Type") {
			qpType, row = 0, nil
			for _, known := range tabledTypes {
				if words[len(words)-1] == "IBV_QPT_"+known.String() {
					qpType = known
				}
			}
			continue
		}
		if len(words) == 0 || qpType == 0 {
			continue
		}
		for to, from := range previous {
			if strings.EqualFold(words[0], to.String()) {
				row = &typedTransition{qpType, transition{from, to}}
				words = words[1:]
				break
			}
		}
		if row == nil || len(words) == 0 || !strings.HasPrefix(words[0], "IBV_QP_") {
			row = nil
			continue
		}
		for _, word := range words {
			require.Contains(t, manNames, word)
			fromManual[*row] |= manNames[word]
		}
	}
	require.Len(t, fromManual, len(tabledTypes)*len(previous))
	for key, required := range fromManual {
		rule, ok := ruleFor(key.qpType, key.from, key.to)
		require.True(t, ok)
		assert.Equal(t, required, rule.required|AttrState, "%v %v→%v", key.qpType, key.from, key.to)
	}
}
