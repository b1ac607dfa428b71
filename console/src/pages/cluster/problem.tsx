import { Text } from '@mantine/core';
import type { ReactNode } from 'react';

/** What is wrong, below the facts of a panel. */
export function Problem({ children }: { children: ReactNode }) {
  return (
    <Text size="sm" c="var(--tg-critical)" mt="xs">
      {children}
    </Text>
  );
}
