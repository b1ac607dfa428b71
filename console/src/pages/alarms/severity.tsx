import { Trans, useLingui } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import type { Schemas } from '../../api/client';
import { StateBadge, type Health } from '../../ui/state-badge';

export type Severity = Schemas['Severity'];

export const severities: Severity[] = ['CRITICAL', 'MAJOR', 'MINOR', 'WARNING', 'INDETERMINATE'];

const health: Record<Severity, Health> = {
  CRITICAL: 'critical',
  MAJOR: 'critical',
  MINOR: 'warning',
  WARNING: 'warning',
  INDETERMINATE: 'unknown',
};

export function SeverityName({ severity }: { severity: Severity }): ReactNode {
  switch (severity) {
    case 'CRITICAL':
      return <Trans>critical</Trans>;
    case 'MAJOR':
      return <Trans>major</Trans>;
    case 'MINOR':
      return <Trans>minor</Trans>;
    case 'WARNING':
      return <Trans>warning</Trans>;
    default:
      return <Trans>indeterminate</Trans>;
  }
}

/** Severities to choose from, with their names. */
export function useSeverityOptions(): { value: Severity; label: string }[] {
  const { t } = useLingui();
  const labels: Record<Severity, string> = {
    CRITICAL: t`critical`,
    MAJOR: t`major`,
    MINOR: t`minor`,
    WARNING: t`warning`,
    INDETERMINATE: t`indeterminate`,
  };
  return severities.map((value) => ({ value, label: labels[value] }));
}

export function SeverityBadge({ severity, isCleared }: { severity: Severity; isCleared?: boolean }) {
  return (
    <StateBadge health={isCleared ? 'unknown' : health[severity]}>
      <SeverityName severity={severity} />
    </StateBadge>
  );
}

export function AlarmStateName({ state }: { state: Schemas['Alarm']['state'] }): ReactNode {
  switch (state) {
    case 'ACTIVE_UNACK':
      return (
        <strong>
          <Trans>active, not acknowledged</Trans>
        </strong>
      );
    case 'ACTIVE_ACK':
      return <Trans>active, acknowledged</Trans>;
    case 'CLEARED_UNACK':
      return <Trans>cleared, not acknowledged</Trans>;
    default:
      return <Trans>cleared</Trans>;
  }
}
