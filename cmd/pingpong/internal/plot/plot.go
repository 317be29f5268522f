// Package plot draws what pingpong has measured.
package plot

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/goverbs/goverbs/cmd/pingpong/internal/report"
)

const (
	width  = 24 * vg.Centimeter
	height = 15 * vg.Centimeter
)

// curve is one line of the plot: what it is called, and its value of a result.
type curve struct {
	name  string
	value func(report.Result) (float64, bool)
}

// Write draws percentiles of the latency over the message size as SVG, or the throughput
// where several were in flight or no times were taken. Above the axes stands what was
// measured.
func Write(w io.Writer, r *report.Report) error {
	p, legend, err := figure(r)
	if err != nil {
		return err
	}
	canvas := vgsvg.NewWith(vgsvg.UseWH(width, height), vgsvg.EmbedFonts(false))
	const margin = 4 * vg.Millimeter
	whole := draw.Crop(draw.New(canvas), margin, -margin, margin, -margin)
	axes, beside := besideAxes(p, whole)
	p.Draw(axes)
	legend.Draw(beside)
	_, err = canvas.WriteTo(w)
	return err
}

// besideAxes divides a canvas into that of the axes, and that of the legend: right of them, since
// curves may go anywhere between them.
func besideAxes(p *plot.Plot, whole draw.Canvas) (axes, legend draw.Canvas) {
	const room, gap = 29 * vg.Millimeter, 3 * vg.Millimeter
	axes = draw.Crop(whole, 0, -room, 0, 0)
	legend = draw.Crop(whole, axes.Size().X+gap, 0, 0, 0)
	legend.Max.Y = p.DataCanvas(axes).Max.Y
	return axes, legend
}

func figure(r *report.Report) (*plot.Plot, *plot.Legend, error) {
	p, legend := plot.New(), plot.NewLegend()
	p.Title.Text = wrap(r.Boundary, 105)
	p.Title.Padding = 4 * vg.Millimeter
	p.X.Label.Text = "size of a message or operation [bytes]"
	curves := latencies
	p.Y.Label.Text = "latency [µs]"
	if r.Setup.Depth > 1 || r.Results[0].Latency == nil {
		curves = throughput
		p.Y.Label.Text = "throughput [MiB/s]"
	}
	for style, size := range map[*draw.TextStyle]vg.Length{
		&p.Title.TextStyle: 10, &legend.TextStyle: 10,
		&p.X.Label.TextStyle: 11, &p.X.Tick.Label: 9, &p.Y.Label.TextStyle: 11, &p.Y.Tick.Label: 9,
	} {
		style.Font.Variant, style.Font.Size = "Sans", size
	}
	p.Add(plotter.NewGrid())
	top, least := 0.0, math.Inf(1)
	for i, c := range slices.Backward(curves) { // the legend from the highest down
		var points plotter.XYs
		for _, one := range r.Results {
			if y, ok := c.value(one); ok && y > 0 {
				points = append(points, plotter.XY{X: doublings(one.Size), Y: y})
				top, least = max(top, y), min(least, y)
			}
		}
		if len(points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, nil, err
		}
		line.Color, line.Width = colors[i], vg.Points(1.2)
		marks.Color, marks.Shape, marks.Radius = colors[i], shapes[i], vg.Points(2.2)
		p.Add(line, marks)
		legend.Add(c.name, line, marks)
	}
	if top == 0 {
		return nil, nil, errors.New("nothing was measured that could be drawn")
	}
	legend.Left, legend.Top, legend.Padding = true, true, vg.Millimeter
	scaleX(p, r.Results)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
	p.Y.Min, p.Y.Max = below(least), above(top)
	return p, &legend, nil
}

var latencies = []curve{
	latency("p50", func(l *report.Latency) float64 { return l.P50 }),
	latency("p90", func(l *report.Latency) float64 { return l.P90 }),
	latency("p99", func(l *report.Latency) float64 { return l.P99 }),
	latency("p99.9", func(l *report.Latency) float64 { return l.P999 }),
	latency("max", func(l *report.Latency) float64 { return l.Max }),
}

var throughput = []curve{{"throughput", func(one report.Result) (float64, bool) { return one.MiB, true }}}

func latency(name string, of func(*report.Latency) float64) curve {
	return curve{name, func(one report.Result) (float64, bool) {
		if one.Latency == nil {
			return 0, false
		}
		return of(one.Latency), true
	}}
}

// Colours that can be told apart by those who see few of them, and shapes beside.
var (
	colors = []color.Color{
		color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff},
		color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x55, 0x55, 0x55, 0xff},
	}
	shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{}, draw.CrossGlyph{}}
)

// doublings is where a size is on the axis: not a plot.LogScale, with which the plot keeps room
// for the axis's label beside the middle, where that is not.
func doublings(size uint32) float64 { return math.Log2(float64(size)) }

// scaleX has the sizes double from tick to tick.
func scaleX(p *plot.Plot, results []report.Result) {
	const beside = 0.4
	p.X.Min, p.X.Max = doublings(results[0].Size)-beside, doublings(results[len(results)-1].Size)+beside
	var ticks plot.ConstantTicks
	for _, one := range results {
		ticks = append(ticks, plot.Tick{Value: doublings(one.Size), Label: sizeText(one.Size)})
	}
	p.X.Tick.Marker = ticks
}

func sizeText(n uint32) string {
	for _, unit := range []struct {
		name string
		size uint32
	}{{"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}} {
		if n >= unit.size && n%unit.size == 0 {
			return fmt.Sprintf("%d%s", n/unit.size, unit.name)
		}
	}
	return fmt.Sprint(n)
}

// decades has numbers at 1, 2 and 5 times each power of ten, with marks between.
type decades struct{}

func (decades) Ticks(least, most float64) (ticks []plot.Tick) {
	for exp := math.Floor(math.Log10(least)); math.Pow(10, exp) <= most; exp++ {
		for i := 1.0; i < 10; i++ {
			label, value := "", i*math.Pow(10, exp)
			if i == 1 || i == 2 || i == 5 {
				label = strconv.FormatFloat(value, 'f', int(max(0, -exp)), 64)
			}
			if value >= least && value <= most {
				ticks = append(ticks, plot.Tick{Value: value, Label: label})
			}
		}
	}
	return ticks
}

// below and above are the next 1, 2 or 5 times a power of ten, so that an axis ends at a number.
func below(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{5, 2} {
		if n*decade <= v {
			return n * decade
		}
	}
	return decade
}

func above(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5} {
		if n*decade >= v {
			return n * decade
		}
	}
	return 10 * decade
}

// wrap breaks a line at words. The width leaves room for fonts that are wider than that which
// the plot is laid out for.
func wrap(s string, width int) string {
	var out strings.Builder
	n := 0
	for word := range strings.FieldsSeq(s) {
		if n > 0 && n+1+len(word) > width {
			out.WriteString("\n")
			n = 0
		} else if n > 0 {
			out.WriteString(" ")
			n++
		}
		out.WriteString(word)
		n += len(word)
	}
	return out.String()
}
