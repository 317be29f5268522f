// Package attributes is what ibvinfo-verbs tells ibvinfo of the devices that it has opened,
// as JSON.
package attributes

// Document is all that it says.
type Document struct {
	Devices []Device `json:"devices"`
	Error   string   `json:"error,omitempty"` // why no device was opened
}

// Device is what one device told. Without Attributes, Error says why it could not be opened.
// The attributes have the names of their fields in package ibv, in snake case.
type Device struct {
	Name       string         `json:"name"`
	Transport  string         `json:"transport,omitempty"`
	Attributes map[string]any `json:"attributes,omitempty"`
	Ports      []Port         `json:"ports,omitempty"`
	Error      string         `json:"error,omitempty"`
}

// Port is what one port of an opened device told.
type Port struct {
	Port       uint8          `json:"port"`
	Attributes map[string]any `json:"attributes"`
}
