// Tools that the main module cannot pin, because they would drag versions into
// it. Built by hack/lint.sh into build/bin; nothing imports this module.
module github.com/ibconduit/conduit/hack/tools

go 1.26.8

// golang.org/x/vuln v1.9.0 asks for a telemetry version that the public module
// proxy does not serve; the one named here has the same API. To be dropped when
// a later x/vuln resolves by itself.
replace golang.org/x/telemetry => golang.org/x/telemetry v0.0.0-20260924152758-ed294f943157

tool (
	golang.org/x/tools/cmd/deadcode
	golang.org/x/vuln/cmd/govulncheck
)

require (
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/telemetry v0.0.0-20261010193011-f71dc92da45e // indirect
	golang.org/x/tools v0.52.0 // indirect
	golang.org/x/vuln v1.9.0 // indirect
)
