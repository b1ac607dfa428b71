/** Pages of new objects. Their last part is no valid name of an object, so that an object may have the name `new`. */

export const newPart = '+new';
export const newRulePath = `/rules/${newPart}`;
export const newChainPath = `/chains/${newPart}`;
