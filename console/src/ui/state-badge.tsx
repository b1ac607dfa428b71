import { IconAlertTriangle, IconCircleCheck, IconCircleX, IconHelpCircle } from '@tabler/icons-react';
import type { ReactNode } from 'react';

export type Health = 'good' | 'warning' | 'critical' | 'unknown';

const icons = { good: IconCircleCheck, warning: IconAlertTriangle, critical: IconCircleX, unknown: IconHelpCircle };

/** A state as icon, colour and word; the colour alone never tells it. */
export function StateBadge({ health, children }: { health: Health; children: ReactNode }) {
  const Icon = icons[health];
  return (
    <span className={`state state-${health}`}>
      <Icon size={15} aria-hidden stroke={2} />
      <span>{children}</span>
    </span>
  );
}
