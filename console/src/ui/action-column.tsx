import { Button } from '@mantine/core';
import { t } from '@lingui/core/macro';
import type { Icon } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import type { Column } from './data-table';

/** The last column of a table: a button for what can be done with a row. */
export function actionColumn<T>(action: {
  label: ReactNode;
  icon: Icon;
  /** Rows without the button. */
  isHidden?: (row: T) => boolean;
  onClick: (row: T) => void;
}): Column<T> {
  const { icon: ActionIcon } = action;
  return {
    id: 'action',
    header: t`Action`,
    cell: (row) =>
      action.isHidden?.(row) ? null : (
        <Button
          size="compact-xs"
          variant="default"
          leftSection={<ActionIcon size={12} />}
          onClick={() => action.onClick(row)}
        >
          {action.label}
        </Button>
      ),
  };
}
