package condition

import (
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/ext"
)

// environment returns the variables and functions of expressions.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable(clientName, cel.StringType),
		cel.Variable(serverName, cel.StringType),
		cel.Variable(toolName, cel.StringType),
		cel.Variable(annotationsName, cel.MapType(cel.StringType, cel.BoolType)),
		cel.Variable(argumentsName, cel.MapType(cel.StringType, cel.DynType)),
		cel.CrossTypeNumericComparisons(true),
		cel.EnableErrorOnBadPresenceTest(true),
		ext.Strings(ext.StringsVersion(5)),
	)
})
