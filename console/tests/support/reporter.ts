/** Reports results as Rust's test programs do, so that `cargo xtask test` counts them with all others. */

import type { UserConsoleLog } from 'vitest';
import type { Reporter, SerializedError, TestCase, TestModule } from 'vitest/node';

interface Problem {
  message: string;
  stack?: string;
}

export default class LibtestReporter implements Reporter {
  private readonly startedAt = Date.now();
  private passed = 0;
  private failed = 0;
  private filteredOut = 0;

  onTestCaseResult(test: TestCase): void {
    const { state, errors } = test.result();
    if (state === 'passed') {
      this.passed += 1;
      // As Rust's test programs write it with `--report-time`.
      const seconds = ((test.diagnostic()?.duration ?? 0) / 1000).toFixed(1);
      console.log(`test ${test.fullName} ... ok <${seconds}s>`);
    } else if (state === 'failed') {
      this.fail(test.fullName, errors);
    } else {
      this.filteredOut += 1;
    }
  }

  /** Measured values. */
  onUserConsoleLog({ content }: UserConsoleLog): void {
    console.log(content.trimEnd());
  }

  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[]): void {
    for (const module of modules) {
      const suites = [module, ...module.children.allSuites()];
      const problems = suites.flatMap((suite) => suite.errors());
      if (problems.length > 0) this.fail(module.relativeModuleId, problems);
    }
    if (unhandled.length > 0) this.fail('errors outside of tests', unhandled);
    const verdict = this.failed > 0 ? 'FAILED' : 'ok';
    const seconds = ((Date.now() - this.startedAt) / 1000).toFixed(2);
    console.log(
      `test result: ${verdict}. ${this.passed} passed; ${this.failed} failed; 0 ignored; 0 measured; ` +
        `${this.filteredOut} filtered out; finished in ${seconds}s`,
    );
  }

  private fail(name: string, problems: readonly Problem[]): void {
    this.failed += 1;
    for (const problem of problems) console.log(`${name}: ${problem.stack ?? problem.message}`);
    console.log(`test ${name} ... FAILED`);
  }
}
