package devinfo

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

// values returns the fields of a struct of attributes by their names in snake case. What has
// a name of its own, as a state, is that name; all else is a number.
func values(attributes any) map[string]any {
	all := map[string]any{}
	v := reflect.ValueOf(attributes)
	for i := range v.NumField() {
		value := v.Field(i).Interface()
		if named, ok := value.(fmt.Stringer); ok {
			value = named.String()
			if n, err := strconv.Atoi(named.String()); err == nil { // an MTU
				value = n
			}
		}
		all[snake(v.Type().Field(i).Name)] = value
	}
	return all
}

// whole is what C's names take for one word, or for two.
var whole = strings.NewReplacer("IPv6", "Ipv6", "QPTs", "Qpts", "PKey", "Pkey", "QKey", "Qkey",
	"QPWR", "QpWR", "SRQWR", "SrqWR", "SRQSGE", "SrqSGE", "SMLID", "SmLID", "SMSL", "SmSL")

// snake turns a Go name into C's form: MaxQPWR into max_qp_wr.
func snake(name string) string {
	runes := []rune(whole.Replace(name))
	var b strings.Builder
	for i, r := range runes {
		begins := i > 0 && unicode.IsUpper(r) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if begins {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
