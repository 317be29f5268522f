package main

const commonHelp = `  -d, --ib-dev DEV       only the device DEV
  -i, --ib-port PORT     only the port PORT, from 1
      --json             print one JSON document, also on errors
  -h, --help             print this text
`

const exitHelp = `
Exit status: 0, also where there are no devices; 1 if a device or port was not
found or could not be queried; 2 for wrong usage.
`

const listHelp = `Show the RDMA devices of this host, which GID would be used, and what is wrong.
Everything is read from /sys and /proc, as any user: no device is opened, but for
--verbose and doctor. A device that is visible there need not be usable, as in a
container: the last column says which is not, and below is why and what to do.

Usage: ibvinfo [flags]                       devices, ports and GIDs
       ibvinfo gids [flags]                  the GIDs, and which one reaches an address
       ibvinfo counters [flags]              what was sent, lost and congested
       ibvinfo doctor [flags] [PROGRAM...]   what is wrong here, and the remedy

Commands:
  gids       show the GID tables; with --for ADDRESS, which GID the library would
             choose to reach that address, and why not the others
  counters   show the counters of the ports, those of congestion and loss first
  doctor     check everything that keeps a device from working: modules, device nodes,
             permissions, memlock limit, libraries, ports, MTU, GIDs and more

Flags:
  -l, --list             print the names of the devices, one a line
  -v, --verbose          open the devices and print all attributes, as ibv_devinfo -v
` + commonHelp + `
Examples:
  ibvinfo gids --for 10.0.0.2     which GID would be used to reach 10.0.0.2
  ibvinfo doctor                  why this host or container cannot use the device that
                                  it sees
  ibvinfo counters --watch 1s     what happens each second
  ibvinfo --json                  for jq and other programs

Files: the device nodes are /dev/infiniband/uverbsN, one for each device; a container
needs them passed in (--device=/dev/infiniband).
` + exitHelp + `
Environment: colours are for a terminal only, and not where NO_COLOR is set.

JSON: the schema of the documents is in share/doc/goverbs/ibvinfo.schema.json of the
installation, and beside the source.
`

const gidsHelp = `Show the GID tables of the ports. A GID is the address that a queue pair sends from;
on RoCE each IP address of the network interface has one, for RoCE v1 and for RoCE v2.

Usage: ibvinfo gids [flags]

Flags:
      --for ADDRESS      say for each device which GID the library would choose to reach
                         the IP address or host ADDRESS, and why not the others; nothing
                         is sent
` + commonHelp + `
Examples:
  ibvinfo gids --for 10.0.0.2         the chosen GID is marked with *
  ibvinfo gids --for fe80::1%eth0     a link-local address needs its interface
` + exitHelp

const countersHelp = `Show the counters of ports and devices. Those that tell of congestion and loss come
first, with what they mean, whatever the vendor calls them; counters that are not
known are shown as they are. The kernel counts pause frames of Ethernet elsewhere:
ethtool -S NETDEV.

Usage: ibvinfo counters [flags]

Flags:
      --watch INTERVAL   show what has changed every INTERVAL, such as 1s or 500ms,
                         until Ctrl-C
      --count N          with --watch: end after N intervals
` + commonHelp + exitHelp

const doctorHelp = `Check what keeps RDMA devices from working, from kernel modules to GIDs. Each finding
is a line: ok, warning or failed, with the remedy.

Usage: ibvinfo doctor [flags] [PROGRAM...]

A PROGRAM that uses libibverbs is looked at too: linked statically it finds no device.

Flags:
  -d, --ib-dev DEV       only the device DEV
      --json             print one JSON document, also on errors
  -h, --help             print this text

Exit status: 0, also with warnings; 1 if a check failed; 2 for wrong usage.
`
