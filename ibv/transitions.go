package ibv

import (
	"fmt"
	"strings"
)

// transition is a move between two states of a QP of one type.
type transition struct {
	from, to QPState
}

// attrRule says which attributes go with a transition. AttrState always may,
// and needs no mention.
type attrRule struct {
	required, optional QPAttrMask
}

// Attributes that appear together in the rules.
const (
	attrsConnect = AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN
	attrsMigrate = AttrAltPath | AttrPathMigState | AttrAccess
)

// attrRules has the transitions that the InfiniBand specification and Linux
// know, but for those to RESET and to ERR, which all types share. AttrCap is in
// none: Linux resizes no queue pair. Only newer kernels take AttrRateLimit for RC.
var attrRules = map[QPType]map[transition]attrRule{
	QPTypeRC: {
		{QPStateReset, QPStateInit}: {required: AttrPKeyIndex | AttrPort | AttrAccess},
		{QPStateInit, QPStateInit}:  {optional: AttrPKeyIndex | AttrPort | AttrAccess},
		{QPStateInit, QPStateRTR}: {
			required: attrsConnect | AttrMaxDestRdAtomic | AttrMinRNRTimer,
			optional: AttrAltPath | AttrAccess | AttrPKeyIndex | AttrRateLimit,
		},
		{QPStateRTR, QPStateRTS}: {
			required: AttrSQPSN | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic,
			optional: attrsMigrate | AttrCurState | AttrMinRNRTimer | AttrRateLimit,
		},
		{QPStateRTS, QPStateRTS}: {optional: attrsMigrate | AttrCurState | AttrMinRNRTimer | AttrRateLimit},
		{QPStateRTS, QPStateSQD}: {optional: AttrSQDrainedNotify},
		{QPStateSQD, QPStateRTS}: {optional: attrsMigrate | AttrCurState | AttrMinRNRTimer},
		{QPStateSQD, QPStateSQD}: {
			optional: attrsMigrate | AttrPKeyIndex | AttrPort | AttrAV | AttrTimeout | AttrRetryCount | AttrRNRRetry |
				AttrMaxRdAtomic | AttrMaxDestRdAtomic | AttrMinRNRTimer,
		},
	},
	QPTypeUC: {
		{QPStateReset, QPStateInit}: {required: AttrPKeyIndex | AttrPort | AttrAccess},
		{QPStateInit, QPStateInit}:  {optional: AttrPKeyIndex | AttrPort | AttrAccess},
		{QPStateInit, QPStateRTR}:   {required: attrsConnect, optional: AttrAltPath | AttrAccess | AttrPKeyIndex},
		{QPStateRTR, QPStateRTS}:    {required: AttrSQPSN, optional: attrsMigrate | AttrCurState},
		{QPStateRTS, QPStateRTS}:    {optional: attrsMigrate | AttrCurState},
		{QPStateRTS, QPStateSQD}:    {optional: AttrSQDrainedNotify},
		{QPStateSQD, QPStateRTS}:    {optional: attrsMigrate | AttrCurState},
		{QPStateSQD, QPStateSQD}:    {optional: attrsMigrate | AttrPKeyIndex | AttrAV},
		{QPStateSQE, QPStateRTS}:    {optional: AttrAccess | AttrCurState},
	},
	QPTypeUD: {
		{QPStateReset, QPStateInit}: {required: AttrPKeyIndex | AttrPort | AttrQKey},
		{QPStateInit, QPStateInit}:  {optional: AttrPKeyIndex | AttrPort | AttrQKey},
		{QPStateInit, QPStateRTR}:   {optional: AttrPKeyIndex | AttrQKey},
		{QPStateRTR, QPStateRTS}:    {required: AttrSQPSN, optional: AttrQKey | AttrCurState},
		{QPStateRTS, QPStateRTS}:    {optional: AttrQKey | AttrCurState},
		{QPStateRTS, QPStateSQD}:    {optional: AttrSQDrainedNotify},
		{QPStateSQD, QPStateRTS}:    {optional: AttrQKey | AttrCurState},
		{QPStateSQD, QPStateSQD}:    {optional: AttrPKeyIndex | AttrQKey},
		{QPStateSQE, QPStateRTS}:    {optional: AttrQKey | AttrCurState},
	},
}

// ruleFor looks up a transition of a type that has a table.
func ruleFor(t QPType, from, to QPState) (attrRule, bool) {
	// RESET is left through INIT alone; every other state may fail.
	if to == QPStateReset || to == QPStateErr && from != QPStateReset {
		return attrRule{}, true
	}
	rule, ok := attrRules[t][transition{from, to}]
	return rule, ok
}

// transitionError is a modify that the rules refuse: the transition does not
// exist, or attributes are missing or too many.
type transitionError struct {
	qpType             QPType
	from, to           QPState
	moves              bool // the mask has AttrState
	targets            []QPState
	missing, forbidden QPAttrMask
}

func (e *transitionError) Error() string {
	move := fmt.Sprintf("%v QP %v→%v", e.qpType, e.from, e.to)
	if !e.moves {
		move = fmt.Sprintf("%v QP in %v without AttrState", e.qpType, e.from)
	}
	if e.targets != nil {
		names := make([]string, len(e.targets))
		for i, s := range e.targets {
			names[i] = s.String()
		}
		fault := "there is no such transition"
		if !e.moves {
			fault = "nothing can be modified there"
		}
		return fmt.Sprintf("%s: %s, from %v it can go to %s", move, fault, e.from, strings.Join(names, ", "))
	}
	var faults []string
	if e.missing != 0 {
		faults = append(faults, fmt.Sprintf("missing attributes %v", e.missing))
	}
	if e.forbidden != 0 {
		faults = append(faults, fmt.Sprintf("attributes not allowed here %v", e.forbidden))
	}
	return move + ": " + strings.Join(faults, "; ")
}

// checkTransition checks a modify of a QP of type t from the state from, by the
// attributes in mask; to counts only with AttrState, without it the QP stays.
// With AttrCurState, from is the state that the caller claims.
//
// It passes everything for types that have no table and for a state that is not
// known. The rules are those of InfiniBand and RoCE: for iWARP, whose QPs are
// moved by its connection manager, do not call it.
func checkTransition(t QPType, from, to QPState, mask QPAttrMask) error {
	if attrRules[t] == nil || checkState("from", from) != nil {
		return nil
	}
	moves := mask&AttrState != 0
	if !moves {
		to = from
	}
	e := &transitionError{qpType: t, from: from, to: to, moves: moves}
	rule, ok := ruleFor(t, from, to)
	if !ok {
		e.targets = targetsFrom(t, from)
		return e
	}
	e.missing = rule.required &^ mask
	e.forbidden = mask &^ (rule.required | rule.optional | AttrState)
	if e.missing == 0 && e.forbidden == 0 {
		return nil
	}
	return e
}

// targetsFrom returns the states that a QP of type t can go to.
func targetsFrom(t QPType, from QPState) []QPState {
	var targets []QPState
	for to := QPStateReset; to <= QPStateErr; to++ {
		if _, ok := ruleFor(t, from, to); ok {
			targets = append(targets, to)
		}
	}
	return targets
}
